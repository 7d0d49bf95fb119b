// tools/completion.cpp - lockstep completion: scripts for shells, made from the command line's own description.
#include <iostream>
#include <string>
#include <vector>

#include "commands.h"
#include "lockstep/core/error.h"
#include "lockstep/graph/ir/op.h"
#include "lockstep/graph/transform/pass_registry.h"
#include "lockstep/strategies/strategy_registry.h"
#include "shell_words.h"

namespace lockstep::tools {

namespace {

std::string joined(const std::vector<std::string>& words, const char* separator = " ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : separator) + word;
  return text;
}

void print_bash(const std::vector<CommandDescription>& commands) {
  std::string names;
  for (const CommandDescription& command : commands) names += command.name + " ";
  std::cout << "# bash completion of lockstep: source <(lockstep completion bash)\n"
               "_lockstep() {\n"
               "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
               "  COMPREPLY=()\n"
               "  if [[ $word == = ]]; then word=; elif [[ $before == = ]]; then "
               "before=${COMP_WORDS[COMP_CWORD-2]}; fi  # --option=value\n"
               "  local list=${word%\"${word##*,}\"}  # what stands before the last comma, with it\n"
               "  if [[ $COMP_CWORD -eq 1 ]]; then\n"
               "    mapfile -t COMPREPLY < <(compgen -W "
            << single_quoted(names + "--help --version")
            << " -- \"$word\")\n"
               "    return\n"
               "  fi\n"
               "  case ${COMP_WORDS[1]} in\n";
  for (const CommandDescription& command : commands) {
    std::cout << "    " << command.name << ")\n      case $before in\n";
    std::vector<std::string> all;
    for (const OptionDescription& option : command.options) {
      all.insert(all.end(), option.names.begin(), option.names.end());
      if (!option.takes_value) continue;
      std::cout << "        " << joined(option.names, "|") << ") ";
      if (option.takes_list) {
        std::cout << "mapfile -t COMPREPLY < <(compgen -P \"$list\" -W "
                  << single_quoted(joined(option.values)) << " -- \"${word##*,}\"); ";
      } else if (!option.values.empty()) {
        std::cout << "mapfile -t COMPREPLY < <(compgen -W " << single_quoted(joined(option.values))
                  << " -- \"$word\"); ";
      } else if (option.takes_file) {
        std::cout << "mapfile -t COMPREPLY < <(compgen -f -- \"$word\"); ";
      }
      std::cout << "return ;;\n";
    }
    std::cout << "      esac\n"
                 "      if [[ $word == -* ]]; then\n"
                 "        mapfile -t COMPREPLY < <(compgen -W "
              << single_quoted(joined(all)) << " -- \"$word\")\n";
    if (command.arguments > 0)
      std::cout << "      else\n"
                   "        mapfile -t COMPREPLY < <(compgen "
                << (command.values.empty() ? "-f" : "-W " + single_quoted(joined(command.values)))
                << " -- \"$word\")\n";
    std::cout << "      fi ;;\n";
  }
  std::cout << "  esac\n}\ncomplete -o filenames -F _lockstep lockstep\n";
}

// Escapes a summary for zsh's _arguments: brackets and colons belong to its grammar.
std::string zsh_summary(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// How _arguments completes an option's value.
std::string zsh_value(const OptionDescription& option) {
  if (!option.takes_value) return "";
  if (option.takes_list) return ":value:_sequence compadd - " + joined(option.values);
  if (!option.values.empty()) return ":value:(" + joined(option.values) + ")";
  if (option.takes_file) return ":value:_lockstep_files";
  return ":value: ";
}

void print_zsh(const std::vector<CommandDescription>& commands) {
  std::cout << "#compdef lockstep\n"
               "# zsh completion of lockstep: put it into a folder of $fpath, as _lockstep\n"
               "_lockstep_files() {\n"
               "  compset -P '*='  # the name in NAME=FILE\n"
               "  _files\n"
               "}\n"
               "_lockstep() {\n"
               "  local -a commands=(\n";
  for (const CommandDescription& command : commands)
    std::cout << "    " << single_quoted(command.name + ":" + zsh_summary(command.summary)) << "\n";
  std::cout << "  )\n"
               "  if (( CURRENT == 2 )); then\n"
               "    _describe command commands\n"
               "    _arguments '(- *)'{-h,--help}'[Print this help]' '(- *)--version[Print the version]'\n"
               "    return\n"
               "  fi\n"
               "  local command=$words[2]\n"
               "  shift words\n"
               "  (( CURRENT-- ))\n"
               "  case $command in\n";
  for (const CommandDescription& command : commands) {
    std::cout << "    " << command.name << ")\n      _arguments";
    for (const OptionDescription& option : command.options) {
      const std::string rest = str("[", zsh_summary(option.summary), "]", zsh_value(option));
      for (const std::string& name : option.names) {
        // The value follows '=', or directly follows a one-letter option, or is the next word.
        const char* const joint = !option.takes_value ? "" : name.starts_with("--") ? "=" : "+";
        std::cout << " \\\n        " << single_quoted(str("*", name, joint, rest));
      }
    }
    const std::string value =
        command.values.empty() ? ":file:_files" : ":value:(" + joined(command.values) + ")";
    for (std::size_t i = 1; i <= command.arguments; ++i)
      std::cout << " \\\n        " << single_quoted(str(i, value));
    std::cout << " ;;\n";
  }
  std::cout << "  esac\n}\n_lockstep \"$@\"\n";
}

void print_fish(const std::vector<CommandDescription>& commands) {
  std::cout << "# fish completion of lockstep: lockstep completion fish | source\n"
               "function __lockstep_command_is\n"
               "  set -l words (commandline -opc)\n"
               "  test \"$words[2]\" = $argv[1]\n"
               "end\n"
               "# Each word behind what stands before the last comma.\n"
               "function __lockstep_next_of_list\n"
               "  set -l word (commandline -ct | string replace -r '^(--[a-z-]+=|-[a-z])' '')\n"
               "  set -l list (string match -r '^.*,' -- $word)\n"
               "  printf '%s\\n' \"$list\"$argv\n"
               "end\n"
               "complete -c lockstep -n __fish_use_subcommand -f -s h -l help -d 'Print this help'\n"
               "complete -c lockstep -n __fish_use_subcommand -f -l version -d 'Print the version'\n";
  for (const CommandDescription& command : commands) {
    std::cout << "complete -c lockstep -n __fish_use_subcommand -f -a " << command.name << " -d "
              << single_quoted(command.summary) << '\n';
  }
  for (const CommandDescription& command : commands) {
    const std::string when = single_quoted("__lockstep_command_is " + command.name);
    if (command.arguments == 0 || !command.values.empty())
      std::cout << "complete -c lockstep -n " << when << " -f -a " << single_quoted(joined(command.values))
                << '\n';
    for (const OptionDescription& option : command.options) {
      std::cout << "complete -c lockstep -n " << when;
      for (const std::string& name : option.names)
        std::cout << (name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1));
      if (option.takes_value && option.values.empty()) std::cout << (option.takes_file ? " -r -F" : " -x");
      if (option.takes_list) {
        std::cout << " -x -a " << single_quoted("(__lockstep_next_of_list " + joined(option.values) + ")");
      } else if (!option.values.empty()) {
        std::cout << " -x -a " << single_quoted(joined(option.values));
      }
      std::cout << " -d " << single_quoted(option.summary) << '\n';
    }
  }
}

// Adds the registered names as values of the arguments and options that take them.
void add_registered(std::vector<CommandDescription>& commands) {
  std::vector<std::string> ops, strategies, passes;
  for (const std::string& name : OpRegistry::global().names()) {
    if (OpRegistry::global().get(name).known) ops.push_back(name);
  }
  for (const StrategyInfo& info : StrategyRegistry::global().strategies()) strategies.push_back(info.name);
  for (const PassInfo& info : PassRegistry::global().passes()) passes.push_back(info.name);
  passes.insert(passes.end(), strategies.begin(), strategies.end());
  for (CommandDescription& command : commands) {
    if (command.name == "ops") command.values = ops;
    if (command.name == "passes") command.values = passes;
    for (OptionDescription& option : command.options) {
      if (option.names.back() == "--passes") {
        option.values = passes;
        option.takes_list = true;
      }
      if (option.names.back() == "--strategy") option.values = strategies;
      if (option.names.back() == "--print-after") {
        option.values = passes;
        option.values.insert(option.values.begin(), {"changed", "all"});
      }
    }
  }
}

}  // namespace

int run_command(const CompletionCommand& command) {
  std::vector<CommandDescription> commands = describe_commands();
  add_registered(commands);
  if (command.shell == "bash") {
    print_bash(commands);
  } else if (command.shell == "zsh") {
    print_zsh(commands);
  } else {
    print_fish(commands);
  }
  return kSuccess;
}

}  // namespace lockstep::tools
