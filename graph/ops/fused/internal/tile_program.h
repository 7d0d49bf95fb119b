// graph/ops/fused/internal/tile_program.h - a graph of element-wise nodes as one walk over memory.
//
//   for each tile of about a thousand elements:       x ---> [mul, add] --> [tanh] --> [sub, relu] ---> y
//     for each instruction: compute it                                r0        r0
//
// An instruction is a chain of cheap nodes, each of which takes the value of the one before it
// (core/kernels/chain.h), or the TileFn of a single node. Between instructions values live in registers:
// pieces of a block on the stack that is small enough for the first-level cache, shared by values that are
// not needed at the same time. Inputs of the program's shape are read, and outputs written, in place. An
// input with one element is read as such by chains, and spread over a register once per call for others.
// Other broadcast inputs are read row by row if rows are long; else they are spread over a register for each
// tile, or once if they are the same for every tile.
//
// Every node is computed in the program's shape, even one whose own shape is smaller: element by element,
// broadcasting first and computing first give the same. Results of several shapes therefore need a program
// each.
//
// Thread safety: run() from any number of threads, on ranges that do not overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/core/base/export.h"
#include "lockstep/core/kernels/chain.h"
#include "lockstep/core/tensor.h"
#include "lockstep/graph/ir/graph.h"
#include "lockstep/graph/ir/kernel.h"
#include "lockstep/graph/ir/op.h"

namespace lockstep::internal {

inline constexpr std::size_t kMaxTileOperands = 8;

// The node's tensor if it is a constant; else null.
const Tensor* constant_of(const Node& node);
// For rules of ops that have nothing to do with variables.
const NodeView::VariableSpecs& no_variables();
// Can the node be part of a program?
bool computes_tiles(const Node& node);

// The output specs of each node of a region, by id, if the parameters have the given specs.
LOCKSTEP_API std::vector<TensorSpec> infer_elementwise(const Graph& region,
                                                       std::span<const TensorSpec> inputs);

class LOCKSTEP_API TileProgram {
 public:
  // Computes those results of the region (by number), all of one shape. `specs` are those of
  // infer_elementwise, all known. Output 0 of the kernel may lie in the memory of an input of its spec. The
  // region must outlive the program.
  TileProgram(const Graph& region, std::span<const TensorSpec> specs, std::span<const std::size_t> results);

  std::int64_t num_elements() const { return elements_; }
  // The elements [begin, end) of its results. Throws what a node's TileFn throws, with the place of that
  // node.
  void run(const KernelContext& c, std::int64_t begin, std::int64_t end) const;

  // For tests.
  std::size_t num_registers() const { return registers_; }
  std::int64_t tile() const { return tile_; }

 private:
  class Maker;

  // How far one step along an axis of the program's shape moves in the memory of an input, in elements.
  struct Axis {
    std::int64_t extent = 1;
    std::int64_t step = 0;
  };
  // How the elements of an input come to its readers.
  enum class Mode : std::uint8_t {
    kFlat,      // read in place: element i is element i
    kScalar,    // a single element
    kPeriodic,  // a register, filled at the start: the same for every tile
    kTile,      // a register, filled for each tile
    kRow,       // read in place: consecutive within a row
    kRowScalar  // one element for each row
  };
  struct Source {
    std::uint32_t cell = 0;     // in the table of addresses
    std::uint32_t element = 0;  // the same, for the one element
    bool is_spread = false;     // the one element is spread over the register `cell`
    Mode mode = Mode::kFlat;
    std::uint32_t size = 0;  // of an element, in bytes
    std::int32_t input = -1;
    Tensor constant;         // if input is -1
    std::vector<Axis> axes;  // outermost first; in the row modes, the axes that all inputs share
  };
  static constexpr std::size_t kMaxChain = 64;  // nodes
  struct Link {
    kernels::ChainOp op;
    kernels::ChainForm form;
    std::uint32_t cell;  // of the operand
  };
  // A chain of steps, or else a function.
  struct Instruction {
    kernels::ChainLoop chain = nullptr;
    TileFn function;
    std::uint32_t source = 0;  // of a chain: the cell it starts from
    std::uint32_t first = 0;   // of its steps, or operands
    std::uint32_t count = 0;
    std::uint32_t target = 0;  // cell
    NodeId node;               // for errors
  };
  // A result that is written in place, or copied from a register or an input at the end of each tile.
  struct Output {
    std::uint32_t cell = 0;
    std::uint32_t output = 0;
    std::uint32_t size = 0;
    bool copied = false;
  };
  struct Call;

  static std::int64_t offset_of(std::span<const Axis> axes, std::int64_t at);
  static void spread(const Source& source, const std::byte* from, std::int64_t at, std::int64_t count,
                     std::byte* to);
  void walk(Call& call, std::int64_t begin, std::int64_t end) const;
  void enter(Call& call, std::int64_t at, std::int64_t count, bool first) const;
  void execute(Call& call, const Instruction& instruction, std::int64_t count) const;

  const Graph* region_;
  std::vector<Source> sources_;
  std::vector<Instruction> instructions_;
  std::vector<std::uint32_t> operands_;  // of functions: cells
  std::vector<Link> links_;              // of chains
  std::vector<Output> outputs_;
  std::size_t cells_ = 0;      // registers first
  std::size_t registers_ = 0;  // each of register_bytes_
  std::size_t register_bytes_ = 0;
  std::int64_t elements_ = 0;
  std::int64_t tile_ = 0;
  std::int64_t row_ = 0;  // elements of a row if inputs are read by rows, else 0
};

}  // namespace lockstep::internal
