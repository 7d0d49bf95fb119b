// tools/command_line.cpp - the user's command as plain structs, one per subcommand.
#include "command_line.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>

#include "data_file.h"
#include "lockstep/core/version.h"

namespace lockstep::tools {

namespace {

const char* const kGraphInput =
    "The graph: a .lks (text), .json or .lkg (binary) file, recognised by its contents; '-' is standard "
    "input";
const char* const kExitCodes =
    "\nExit status: 0 where all went well, 1 where something failed, 2 for a wrong command line.\n"
    "Errors go to standard error. The manual is docs/cli.md.";

// More steps, runs or levels than anybody waits for; sums of a few of them fit any counter.
constexpr std::uint64_t kMany = 1'000'000'000;

// Says what is wrong with a text; empty if it is a whole number from `least` to `most`. The command-line
// library itself reads -1 as 2^64-1.
auto whole_number(std::uint64_t least, std::uint64_t most = kMany) {
  return [least, most](const std::string& text) -> std::string {
    std::uint64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error == std::errc() && stop == end && number >= least && number <= most) return {};
    return "expected a whole number from " + std::to_string(least) + " to " + std::to_string(most) +
           ", got '" + text + "'";
  };
}

// The number of bytes in a text like "64MiB"; nothing if the text is not a size.
std::optional<std::uint64_t> size_of_text(std::string_view text) {
  constexpr std::pair<std::string_view, unsigned> kUnits[] = {
      {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  unsigned shift = 0;
  for (const auto& [unit, bits] : kUnits) {
    if (!text.ends_with(unit)) continue;
    text.remove_suffix(unit.size());
    shift = bits;
    break;
  }
  std::uint64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || number > (std::numeric_limits<std::uint64_t>::max() >> shift))
    return {};
  return number << shift;
}

constexpr std::string_view kUnlimited = "unlimited";

ReadLimits limits_of(const std::string& text) {
  ReadLimits limits;
  if (text.empty()) return limits;
  if (text == kUnlimited) return ReadLimits::unlimited();
  limits.base_bytes = size_of_text(text).value_or(limits.base_bytes);
  limits.file_bytes = std::max(limits.file_bytes, limits.base_bytes);
  return limits;
}

// One command line: the parser, and the structs that it fills.
class Parser {
 public:
  Parser() : app_("Looks at, changes, compares and runs Lockstep graphs.", "lockstep") {
    app_.set_version_flag("--version", "lockstep " + std::string(kVersion));
    app_.set_help_flag("-h,--help", "Print this help");
    app_.require_subcommand(1);
    app_.footer(std::string("Each command has its own --help.\n") + kExitCodes);
    add_opt();
    add_dump();
    add_diff();
    add_run();
    add_profile();
    add_data();
    add_info();
    add_launch();
    add_status();
    add_ops();
    add_passes();
    add_completion();
  }

  CommandLine parse(int argc, const char* const* argv) {
    try {
      app_.parse(words_of(argc, argv));
    } catch (const CLI::Success& success) {  // help and version
      app_.exit(success, std::cout, std::cerr);
      return {};
    } catch (const CLI::ParseError& error) {
      check_command(argc, argv);
      const CLI::App* asked = &app_;
      for (const CLI::App* command : app_.get_subcommands()) asked = command;
      const std::string name = asked == &app_ ? "lockstep" : "lockstep " + asked->get_name();
      throw UsageError(std::string(error.what()) + "\nRun '" + name + " --help' for what it takes");
    }
    CommandLine line;
    line.plugins = plugins_;
    line.limits = limits_of(read_limit_);
    for (const Choice& choice : choices_) {
      if (choice.app->parsed()) choice.take(line);
    }
    if (auto* const opt = std::get_if<OptCommand>(&line.command)) opt->plugins = plugins_;
    return line;
  }

  std::vector<CommandDescription> describe() const {
    std::vector<CommandDescription> commands;
    for (const Choice& choice : choices_) {
      CommandDescription command{
          choice.app->get_name(), first_sentence(choice.app->get_description()), {}, choice.values};
      for (const CLI::Option* option : choice.app->get_options()) {
        if (option->get_positional()) ++command.arguments;
        if (!option->nonpositional()) continue;
        OptionDescription described;
        for (const std::string& name : option->get_snames()) described.names.push_back("-" + name);
        for (const std::string& name : option->get_lnames()) described.names.push_back("--" + name);
        described.summary = first_sentence(option->get_description());
        described.takes_value = takes_value(*option);
        const std::string type = option->get_type_name();
        described.takes_file =
            type.find("FILE") != std::string::npos || type.find("VALUE") != std::string::npos;
        const auto values = values_.find(option);
        if (values != values_.end()) described.values = values->second;
        command.options.push_back(std::move(described));
      }
      commands.push_back(std::move(command));
    }
    return commands;
  }

 private:
  struct Choice {
    CLI::App* app;
    std::function<void(CommandLine&)> take;
    std::vector<std::string> values = {};  // of its argument
  };

  static std::string first_sentence(const std::string& text) {
    const std::size_t end = text.find_first_of(".:;(");
    return text.substr(0, end == std::string::npos ? text.size() : text.find_last_not_of(' ', end - 1) + 1);
  }

  // The words of a command line, the last first, as the library takes them. An option that ends in '=' has an
  // empty value, which the library would look for in the next word.
  std::vector<std::string> words_of(int argc, const char* const* argv) const {
    std::vector<std::string> words;
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      if (word.starts_with("--") && word.ends_with('=') && takes_value(word.substr(0, word.size() - 1))) {
        words.push_back(word.substr(0, word.size() - 1));
        words.emplace_back();
      } else {
        words.push_back(word);
      }
    }
    std::ranges::reverse(words);
    return words;
  }
  bool takes_value(const std::string& option) const {
    return std::ranges::any_of(choices_, [&](const Choice& choice) {
      const CLI::Option* const found = choice.app->get_option_no_throw(option);
      return found != nullptr && takes_value(*found);
    });
  }
  static bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() != 0; }

  // Refuses an unknown command, and an unknown option before it: the library would say that the command is
  // missing.
  void check_command(int argc, const char* const* argv) const {
    const std::string first = argc > 1 ? argv[1] : "";
    if (first.empty()) return;
    if (first.starts_with('-')) {
      if (app_.get_option_no_throw(first) != nullptr) return;
      throw UsageError("there is no option '" + first +
                       "' before the command\nRun 'lockstep --help' for the commands, 'lockstep COMMAND "
                       "--help' for their options");
    }
    std::string known;
    for (const Choice& choice : choices_) {
      if (choice.app->get_name() == first) return;
      known += (known.empty() ? "" : ", ") + choice.app->get_name();
    }
    throw UsageError("there is no command '" + first + "'; there are " + known);
  }

  template <class Command>
  CLI::App& add_command(const std::string& name, const std::string& summary, Command& command,
                        std::vector<std::string> values = {}) {
    CLI::App* const app = app_.add_subcommand(name, summary);
    app->footer(kExitCodes);
    choices_.push_back({app, [&command](CommandLine& line) { line.command = command; }, std::move(values)});
    return *app;
  }
  CLI::Option* one_of(CLI::Option* option, std::vector<std::string> values) {
    option->check(CLI::IsMember(values));
    values_[option] = std::move(values);
    return option;
  }
  void add_load(CLI::App& app) {
    app.add_option(
           "--load", plugins_,
           "Load a plugin: a shared library with ops, passes and strategies. Runs its code. May be repeated")
        ->type_name("FILE")
        ->take_all()
        ->allow_extra_args(false);
  }
  void add_read_limit(CLI::App& app) {
    app.add_option("--read-limit", read_limit_,
                   "Memory that an input may take, beyond 4 bytes for each of its own: '8GiB', 'unlimited'. "
                   "Default: 64MiB")
        ->check([](const std::string& text) -> std::string {
          if (text == kUnlimited || size_of_text(text)) return {};
          return "expected a size as 512MiB or 8GiB, or 'unlimited', got '" + text + "'";
        })
        ->type_name("SIZE");
  }

  void add_opt() {
    CLI::App& app = add_command("opt", "Run passes on a graph, and write what they make of it", opt_);
    app.add_option("graph", opt_.input, kGraphInput)->required();
    app.add_option("-p,--passes", opt_.passes,
                   "Passes and strategies in order: 'constant-folding,mirrored(devices=[cpu:0,cpu:1])'. See "
                   "'lockstep "
                   "passes'. None: the graph is only read, verified and written")
        ->type_name("TEXT");
    app.add_option(
           "--topology", opt_.topology,
           "The machine that the graph is for: a file, or the text itself: 'cpu:0; gpu:0 gpu:1 memory=1'. "
           "Default: not known")
        ->type_name("TEXT|FILE");
    app.add_option("-o,--output", opt_.output,
                   "Where the graph goes: its extension chooses the format. Default: '-'")
        ->type_name("FILE");
    one_of(app.add_option("-f,--format", opt_.format, "Format of the output"), {"text", "json", "binary"});
    app.add_option(
           "--print-after", opt_.print_after,
           "Print the graph to standard error after passes: those that changed it ('changed'), every one "
           "('all'), or those of this name. May be repeated")
        ->type_name("changed|all|NAME")
        ->take_all()
        ->allow_extra_args(false);
    app.add_flag("--verify-each", opt_.verify_each,
                 "Verify the graph after each pass, and check that it changed it where it says so. Otherwise "
                 "the graph "
                 "is verified before the first and after the last");
    app.add_flag("--time", opt_.time, "Print to standard error what each pass took");
    app.add_option(
           "--reproducer", opt_.reproducer,
           "Where a failing pass leaves the graph that it was given, with the command that shows the failure "
           "again. Default: nowhere")
        ->type_name("FILE");
    app.add_flag("--run-reproducer", opt_.run_reproducer,
                 "The graph is a reproducer: run the passes that it names");
    add_read_limit(app);
    add_load(app);
  }

  void add_dump() {
    CLI::App& app = add_command("dump", "Draw a graph", dump_);
    app.add_option("graph", dump_.input, kGraphInput)->required();
    one_of(app.add_option(
               "-f,--format", dump_.format,
               "dot: Graphviz; svg: a drawing (needs Graphviz); html: a page to explore (needs Graphviz); "
               "json: Model Explorer; text. Default: by the extension of the output, without one text"),
           {"dot", "svg", "html", "json", "text"});
    app.add_option("-o,--output", dump_.output, "Where it goes. Default: '-'")->type_name("FILE");
    app.add_option("-b,--before", dump_.before,
                   "With html: the graph as it was before, shown beside what changed")
        ->type_name("FILE");
    app.add_option("-p,--passes", dump_.passes,
                   "Passes and strategies to run first. With html: a page with the graph after each of them")
        ->type_name("TEXT");
    one_of(
        app.add_option("--color", dump_.color, "What colours tell apart. For dot and svg; default: device"),
        {"device", "replica"});
    app.add_option("--depth", dump_.depth,
                   "Name scopes that lie deeper are boxes. For dot and svg; default: none are")
        ->check(whole_number(0))
        ->type_name("N");
    app.add_flag("--sites", dump_.sites, "With text: where each node was made, as a comment");
    app.add_flag("--provenance", dump_.provenance, "With text: what each node stems from, as a comment");
    add_read_limit(app);
    add_load(app);
  }

  void add_diff() {
    CLI::App& app = add_command(
        "diff", "Compare two graphs: by node identity where they share an origin, else by name", diff_);
    app.footer(
        "\nExit status: 0 where the graphs are the same, 1 where they differ, 2 for trouble.\n"
        "Errors go to standard error. The manual is docs/cli.md.");
    app.add_option("before", diff_.before, kGraphInput)->required();
    app.add_option("after", diff_.after, "The other graph")->required();
    app.add_option("--html", diff_.html, "Write a page that shows both, too (needs Graphviz)")
        ->type_name("FILE");
    app.add_flag("-q,--quiet", diff_.quiet, "Print nothing: the exit status says it");
    add_read_limit(app);
    add_load(app);
  }

  void add_settings(CLI::App& app, RunSettings& settings) {
    app.add_option("graph", settings.input, kGraphInput)->required();
    app.add_option(
           "--feed", settings.feeds,
           "A value for a placeholder: 'x=x.npy', 'x=all.npz' (its entry x), 'x=-' (either of them on "
           "standard input), 'x=f32[2,3]{*0.5}' (as in graph text); or 'all.npz', every entry. May be "
           "repeated")
        ->type_name("[NAME=]VALUE")
        ->take_all()
        ->allow_extra_args(false);
    app.add_option("--devices", settings.devices,
                   "Devices, separated by commas: 'cpu:0,cpu:1'; one for each replica")
        ->type_name("LIST")
        ->delimiter(',');
    app.add_option("--strategy", settings.strategy,
                   "Distribute the step: 'mirrored', or with options 'mirrored(cross_device_ops=ring)'. "
                   "Feeds are then "
                   "split along axis 0, as evenly as can be")
        ->type_name("TEXT");
    app.add_option("--shared", settings.shared,
                   "With --strategy: placeholders that all replicas see whole. Scalars are shared anyway")
        ->type_name("LIST")
        ->delimiter(',');
    app.add_option("--threads", settings.threads, "Worker threads. Default: 0, one per hardware thread")
        ->check(whole_number(0))
        ->type_name("N");
    app.add_option("--seed", settings.seed, "Seed of random ops. Default: 0")
        ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()))
        ->type_name("N");
    app.add_flag("--allow-tf32", settings.allow_tf32,
                 "On NVIDIA cards: products and convolutions of f32 may round what they multiply to TF32");
    app.add_option("--trace", settings.trace, "Write what ran when, for Perfetto or chrome://tracing")
        ->type_name("FILE");
    add_read_limit(app);
    add_load(app);
  }

  void add_run() {
    CLI::App& app = add_command("run", "Run a graph on given feeds, and print or keep the results", run_);
    add_settings(app, run_.settings);
    app.add_option("--steps", run_.steps,
                   "How often, on the same feeds; results are those of the last. Default: 1")
        ->check(whole_number(1))
        ->type_name("N");
    app.add_option(
           "-o,--output", run_.output,
           "Write the results: .npz ('-' too), by name; or .npy, where there is one. Default: print them, "
           "shortened")
        ->type_name("FILE");
    app.add_option("--variables", run_.variables,
                   "Write the variables after the last step, as .npz: one value each, whatever the replicas")
        ->type_name("FILE");
  }

  void add_profile() {
    CLI::App& app = add_command("profile", "Run a graph many times, and say where the time goes", profile_);
    add_settings(app, profile_.settings);
    app.add_option("--runs", profile_.runs, "How many runs count. Default: 20")
        ->check(whole_number(1))
        ->type_name("N");
    app.add_option("--warmup", profile_.warmup, "Runs before that, which do not. Default: 3")
        ->check(whole_number(0))
        ->type_name("N");
    app.add_option("--nodes", profile_.nodes,
                   "Also list so many nodes, those that took most time. Default: 0")
        ->check(whole_number(0))
        ->type_name("N");
    app.add_option("--copy-rate", profile_.copy_rate,
                   "What shares of the copy rate are of: so many GB/s, on all devices. Default: measured")
        ->check(whole_number(1))
        ->type_name("N");
    app.add_option("--peak", profile_.peak,
                   "What shares of the peak are of: so many GFLOP/s, on all devices. Default: measured")
        ->check(whole_number(1))
        ->type_name("N");
    app.add_flag("--no-measure", profile_.no_measure,
                 "Measure no rates: only shares of --copy-rate and --peak are shown");
  }

  void add_data() {
    CLI::App& app = add_command("data", "Show what files of training data hold, or convert one", data_);
    app.add_option("files", data_.inputs,
                   "Files: TFRecord, CSV, IDX, .npy, .npz or text, also packed by gzip. The name says the "
                   "format, or the first bytes")
        ->required();
    app.add_option("--to", data_.output,
                   "Write the elements of the one file: .tfrecord (of Examples), .tfrecord.gz or .csv")
        ->type_name("FILE");
    one_of(app.add_option("-f,--format", data_.format, "Format of the files, whatever their names say"),
           kDataFormats);
    app.add_option("--delimiter", data_.delimiter,
                   "Between the fields of CSV. Default: a comma; a tab for .tsv")
        ->type_name("CHAR");
    app.add_option("--rows", data_.rows, "So many elements are shown. Default: 3")
        ->check(whole_number(0))
        ->type_name("N");
    add_read_limit(app);
  }

  void add_info() {
    CLI::App& app = add_command("info", "Devices, versions and features", info_);
    app.add_option("--topology", info_.topology,
                   "List the devices of another machine: a file, or the text itself: 'cpu:0; gpu:0 gpu:1 "
                   "memory=1'. Default: this machine's")
        ->type_name("TEXT|FILE");
    add_load(app);
  }

  void add_launch() {
    CLI::App& app = add_command("launch", "Start a program as several workers on this machine", launch_);
    app.add_option("-n,--workers", launch_.workers, "How many")->check(whole_number(1))->type_name("N");
    app.add_option("--restarts", launch_.restarts,
                   "Start all workers again, at most so many times, if one ends with status 42. Default: 0")
        ->check(whole_number(0))
        ->type_name("N");
    app.add_option("program", launch_.program, "The program and its arguments, behind --")->required();
  }

  void add_status() {
    CLI::App& app = add_command("status", "Who is in a job of several workers, and what each does", status_);
    app.add_option("address", status_.address, "HOST:PORT of the first worker")->required();
  }

  void add_ops() {
    CLI::App& app = add_command("ops", "List the ops there are, or describe one", ops_);
    app.add_option("name", ops_.name, "An op; none: list all");
    app.add_flag("--markdown", ops_.markdown, "Write the reference page docs/reference_ops.md");
    add_load(app);
  }

  void add_passes() {
    CLI::App& app =
        add_command("passes", "List the passes and strategies there are, or describe one", passes_);
    app.add_option("name", passes_.name, "A pass or a strategy; none: list all");
    app.add_flag("--markdown", passes_.markdown, "Write the reference page docs/reference_passes.md");
    add_load(app);
  }

  void add_completion() {
    const std::vector<std::string> shells = {"bash", "zsh", "fish"};
    CLI::App& app =
        add_command("completion", "Print a script that teaches a shell to complete this command line",
                    completion_, shells);
    app.add_option("shell", completion_.shell, "Which shell")->required()->check(CLI::IsMember(shells));
  }

  CLI::App app_;
  std::vector<Choice> choices_;
  std::map<const CLI::Option*, std::vector<std::string>> values_;
  std::vector<std::string> plugins_;
  std::string read_limit_;
  OptCommand opt_;
  DumpCommand dump_;
  DiffCommand diff_;
  RunCommand run_;
  ProfileCommand profile_;
  DataCommand data_;
  InfoCommand info_;
  LaunchCommand launch_;
  StatusCommand status_;
  OpsCommand ops_;
  PassesCommand passes_;
  CompletionCommand completion_;
};

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) { return Parser().parse(argc, argv); }

std::vector<CommandDescription> describe_commands() { return Parser().describe(); }

}  // namespace lockstep::tools
