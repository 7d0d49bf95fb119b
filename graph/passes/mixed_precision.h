// graph/passes/mixed_precision.h - products and what lies between them are computed in 16 bits; variables stay f32.
//
//   x --> matmul --> add --> relu --> matmul --> softmax_cross_entropy         x, w0, bias0, w1: f32
//   w0 ----^      bias0        w1 ------^
//
//   x --> cast --> matmul --> add --> relu --> matmul --> cast --> softmax_cross_entropy
//   w0 -> cast ------^   bias0 -> cast   w1 -> cast ^        (between the casts everything is bf16)
//
// A step moves half the bytes then, and cards compute products of 16 bits several times faster. Variables, gradients when
// they are applied, optimizers' slots, softmax_cross_entropy, norms and means stay f32: only nodes of four kinds change, and of f32
// only.
//
//   products   matmul, conv2d and its gradients: always
//   followers  element-wise arithmetic, activations, softmax, dropout, pooling: where they lie between products, so that
//              nothing is cast on the way
//   moves      transpose, reshape, split, concat, ... (aliases, and what only moves elements): there too, and beside them where a
//              cast costs less on the other side of them
//   sums       of gradients (of a bias, say), whose terms have 16 bits: they are added in f32 and rounded once
//
// Other ops keep their dtype unless an option names them. A value is cast at most once each way. What is in `keep` stays f32 with
// its gradient: names of nodes, or of scopes ("head/"). Element-wise parts of a loss lie between products, those of the way there and
// of the way back: keep their scope if targets need more than 8 bits (bf16) or 11 (f16).
//
// f16 has so few exponents that small gradients vanish. So its gradients are computed from the loss times a scale, a power of
// two, which is taken out of them, exactly, before anything outside of gradients() reads them. (Rules of custom_gradient() and of
// your own ops do see it: one that is not linear in what flows back, that clips it, say, needs bf16.) The scale is a variable,
// "loss_scale_<tag>", beginning with `loss_scale`. In a step in which a gradient is infinite or NaN the scale is halved, and no
// variable changes but those that are written without a gradient; after `growth_steps` steps without one it is doubled. A gradient
// that is computed from a new value of a variable, as of the second network of a pair, decides for its own updates only. Counters stand
// still in such a step as they do between those of accumulate-gradients, which says what a counter is, and on devices the host awaits
// the outcome. Replicas agree: gradients are summed first. With growth_steps=0, or without updates by gradients, the scale is a
// constant, and every step counts.
//
// Take it right behind gradients(), before other passes change the step: as MirroredOptions::step_passes, or before
// optimize(). To clip what was scaled, do it after this pass; to accumulate it, too, and keep the scale (growth_steps=0). On a CPU
// it saves memory, no time. A second run changes nothing. Regions are included. Linear.
//
// Throws PassError where gradients are to be scaled and the graph does not say where they begin (one read from the text form
// does not), where they are derived from other gradients, or where the scale changes and a region (of a cond, say, or one that
// accumulate-gradients made) updates a variable by a gradient from outside of it. Thread safety: as any Pass.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/graph/transform/pass.h"

namespace lockstep {

struct MixedPrecisionOptions {
  std::string dtype = "bf16";  // or "f16"
  double loss_scale = 0;       // at first; 1: none; 0: none for bf16, 32768 for f16
  std::int64_t growth_steps = 2000;
  // Ops that are to be products, or followers, and such that keep f32 though they are listed above.
  std::vector<std::string> products = {}, followers = {}, full = {};
  std::vector<std::string> keep = {};
};

// Throws BadOptionValue for another dtype, a scale that is no power of two from 1 to 2^24, or an op that is not registered.
LOCKSTEP_API std::unique_ptr<Pass> make_mixed_precision(MixedPrecisionOptions options = {});

}  // namespace lockstep
