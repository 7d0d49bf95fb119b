// graph/passes/clip_by_global_norm.h - scales all gradients of a step down together if their norm is too
// large.
//
//   g1 --> sgd[w]             g1 --+--------------> mul --> sgd[w]
//   g2 --> sgd[b]    -->      g2 --|--+-----------> mul --> sgd[b]
//                                  +--+--> norm --> scale
//
// Takes the gradients (OpTraits::Update::gradient) of all updates of one level, a graph or a region, and does
// what clip_by_global_norm() of graph/train/clipping.h does to them, bit by bit; slices count by their rows.
//
// Inside a replicated region of several replicas a gradient is only a share of the whole. It is summed over
// the replicas first (all_reduce; rows and their numbers: all_gather), unless it is such a sum already
// (SyncAnalysis::is_summed), so that the norm is that of the whole batch. Variables that are synchronized on
// read belong to one replica: they are clipped separately, with the norm of their own gradients.
//
// In a plain graph every gradient is taken to be whole. So clip a step that is to be distributed only once it
// is inside its replicas: with MirroredOptions::step_passes, or after enter-replicas. If it is clipped
// earlier, each replica scales its share down by the norm of that share; one device would not do that, and no
// later pass can detect it.
//
// Run it once: a second run clips the clipped gradients again. Linear.
// Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct ClipByGlobalNormOptions {
  double norm = 1.0;  // larger norms are scaled down to this; finite and above 0
};

// Throws BadOptionValue if the norm is not finite or not above 0.
LOCKSTEP_API std::unique_ptr<Pass> make_clip_by_global_norm(ClipByGlobalNormOptions options = {});

}  // namespace lockstep
