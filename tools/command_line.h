// tools/command_line.h - the user's command as plain structs, one per subcommand.
//
// Only parse_command_line() knows the command-line library. It prints help and version itself, and throws
// UsageError, which says what is wrong with a command line. docs/cli.md has a row for each option.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/core/read_limits.h"

namespace lockstep::tools {

// Graphs and other inputs are paths, or "-" for standard input; outputs are paths, or "-" for standard
// output.

struct OptCommand {
  std::string input;
  std::string output = "-";
  std::string format;  // of the output: text, json or binary; empty: by the extension, text if there is none
  std::string passes;
  std::vector<std::string> print_after;  // "changed", "all", or names of passes
  std::string topology;                  // a file or the text itself; empty: not known
  bool verify_each = false;
  bool time = false;
  std::string reproducer;            // a file to write; empty: none
  std::vector<std::string> plugins;  // that were loaded
  bool run_reproducer = false;
};

struct DumpCommand {
  std::string input;
  std::string output = "-";
  std::string format;  // dot, svg, html, json or text; empty: by the extension, text if there is none
  std::string before;  // another graph; html only
  std::string passes;
  std::string color;        // device or replica; empty: device
  std::int64_t depth = -1;  // scopes that lie deeper are boxes; -1: none do
  bool sites = false;
  bool provenance = false;
};

struct DiffCommand {
  std::string before;
  std::string after;
  std::string html;  // a page to write; empty: none
  bool quiet = false;
};

// How a graph is fed and run: for run and profile alike.
struct RunSettings {
  std::string input;
  std::vector<std::string> feeds;  // as read_feeds (feeds.h) takes them
  std::vector<std::string> devices;
  std::string strategy;
  std::vector<std::string> shared;
  std::uint64_t threads = 0;
  std::uint64_t seed = 0;
  bool allow_tf32 = false;
  std::string trace;  // a file to write; empty: none
};

struct RunCommand {
  RunSettings settings;
  std::uint64_t steps = 1;
  std::string output;     // .npy or .npz; empty: print
  std::string variables;  // .npz with the variables after the last step, one value each; empty: none
};

struct ProfileCommand {
  RunSettings settings;
  std::uint64_t runs = 20;
  std::uint64_t warmup = 3;
  std::uint64_t nodes = 0;      // so many nodes are listed
  std::uint64_t copy_rate = 0;  // GB/s; 0: measured
  std::uint64_t peak = 0;       // GFLOP/s; 0: measured
  bool no_measure = false;      // no rates but these
};

struct DataCommand {
  std::vector<std::string> inputs;
  std::string output;      // .tfrecord or .csv; empty: show what the inputs hold
  std::string format;      // of the inputs; empty: by their names and contents
  std::string delimiter;   // of CSV; empty: a comma, or a tab for .tsv
  std::uint64_t rows = 3;  // so many elements are shown
};
struct InfoCommand {
  std::string topology;  // a file or the text itself; empty: this machine's
};
struct LaunchCommand {
  std::uint64_t workers = 1;
  std::uint64_t restarts = 0;
  std::vector<std::string> program;  // and its arguments
};
struct StatusCommand {
  std::string address;  // host:port
};
struct OpsCommand {
  std::string name;  // empty: all
  bool markdown = false;
};
struct PassesCommand {
  std::string name;  // empty: all
  bool markdown = false;
};
struct CompletionCommand {
  std::string shell;
};
// Help or version was asked for, and printed.
struct NoCommand {};

struct CommandLine {
  std::vector<std::string> plugins;  // loaded before anything else, in this order
  ReadLimits limits;                 // for everything that is read
  std::variant<NoCommand, OptCommand, DumpCommand, DiffCommand, RunCommand, ProfileCommand, DataCommand,
               InfoCommand, LaunchCommand, StatusCommand, OpsCommand, PassesCommand, CompletionCommand>
      command;
};

// Ends the command with status 2. The message names the subcommand's --help.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

CommandLine parse_command_line(int argc, const char* const* argv);

// The commands and their options, for shells to complete.
struct OptionDescription {
  std::vector<std::string> names;  // "-o", "--output"
  std::string summary;             // the first sentence of its help
  bool takes_value = false;
  bool takes_file = false;          // its value is or can be a file, or a name, '=' and a file
  std::vector<std::string> values;  // the values it can have; empty: anything
  bool takes_list = false;          // several of these values, with commas between them
};
struct CommandDescription {
  std::string name;
  std::string summary;
  std::vector<OptionDescription> options;
  std::vector<std::string> values;  // what its argument can be; empty: a file
  std::size_t arguments = 0;        // how many it takes
};
std::vector<CommandDescription> describe_commands();

}  // namespace lockstep::tools
