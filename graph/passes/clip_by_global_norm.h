// graph/passes/clip_by_global_norm.h - all gradients of a step scaled down together where their norm is too
// large.
//
//   g1 --> sgd[w]             g1 --+--------------> mul --> sgd[w]
//   g2 --> sgd[b]    -->      g2 --|--+-----------> mul --> sgd[b]
//                                  +--+--> norm --> scale
//
// Takes the gradients (OpTraits::Update::gradient) of all updates of one level, a graph or a region, and does
// what clip_by_global_norm() of graph/train/clipping.h does to them, bit by bit; slices count by their rows.
//
// Inside a replicated region of several replicas a gradient is but a share of the whole. It is summed over
// the replicas first (all_reduce; rows and their numbers: all_gather), unless it is such a sum already
// (SyncAnalysis::is_summed), so that the norm is that of the whole batch. Variables that are synchronized on
// read belong to one replica: they are clipped by themselves, with the norm of their own gradients.
//
// In a plain graph gradients are taken for whole. So a step that is to be distributed is clipped once it is
// inside of its replicas: MirroredOptions::step_passes, or enter-replicas first. Clipped before, each replica
// would scale down its share by the norm of that share, which is not what one device does, and nothing could
// tell afterwards.
//
// Run it once: a second run clips what is clipped. Linear.
// Thread safety: as any Pass.
#pragma once

#include <memory>

#include "lockstep/core/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct ClipByGlobalNormOptions {
  double norm = 1.0;  // the largest that is left as it is; finite and above 0
};

// Throws BadOptionValue for a norm that is not.
LOCKSTEP_API std::unique_ptr<Pass> make_clip_by_global_norm(ClipByGlobalNormOptions options = {});

}  // namespace lockstep
