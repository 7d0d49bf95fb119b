// bench/mirrored_step/participants.h - who can make steps on replicas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "support/participant.h"

namespace lockstep::bench {

// A model of support/models.h: one replica per thread, `batch` rows in all. "tiny": `batch` replicas on those
// threads.
std::unique_ptr<Participant> make_mirrored(const std::string& model, std::int64_t batch, std::size_t threads);
// "tiny" by hand, one task an op; null for other models.
std::unique_ptr<Participant> make_taskflow(const std::string& model, std::int64_t batch, std::size_t threads);

// "tiny": h = w, then by turns h *= x and h += y, kTinyOps times, on kTinyElements numbers; w -= mean of h
// over the replicas. Too little work to hide what a step costs beside it. Its loss is the first number of w.
constexpr int kTinyOps = 50;
constexpr std::int64_t kTinyElements = 16;
// Replica r's x is this plus r/1000, its y this plus r/100000.
constexpr float kTinyX = 0.9F, kTinyY = 0.0001F;

}  // namespace lockstep::bench
