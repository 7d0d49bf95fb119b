// Tests: graph/transform/named_factories.cpp, graph/transform/pass_options.cpp,
//        graph/transform/pass_registry.cpp, graph/passes/register.cpp
#include "lockstep/graph/transform/pass_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/graph/transform/option_table.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Nothing final : public Pass {
 public:
  explicit Nothing(std::string name) : name_(std::move(name)) {}
  std::string_view name() const override { return name_; }

 private:
  PassOutcome run_on(Graph& /*graph*/, PassContext& /*context*/) override { return PassOutcome::kUnchanged; }
  std::string name_;
};

class PassRegistryTest : public ::testing::Test {
 protected:
  PassRegistryTest() {
    registry.add({.name = "bucket",
                  .summary = "groups",
                  .options = {{"bytes", OptionType::kInt, std::int64_t{64}},
                              {"ratio", OptionType::kFloat, 0.5},
                              {"overlap", OptionType::kBool, true},
                              {"order", OptionType::kString, std::string("size")},
                              {"devices", OptionType::kList, std::vector<std::string>{}}}},
                 [this](const PassOptions& options) {
                   given = options;
                   return std::make_unique<Nothing>("bucket");
                 });
    registry.add({.name = "replicate", .summary = "copies", .options = {{"n", OptionType::kInt}}},
                 [this](const PassOptions& options) {
                   given = options;
                   return std::make_unique<Nothing>("replicate");
                 });
    registry.add({.name = "plain", .summary = "nothing"},
                 [](const PassOptions&) { return std::make_unique<Nothing>("plain"); });
  }

  template <class Exception>
  std::string error_of(std::string_view text) {
    try {
      registry.parse_pipeline(text);
    } catch (const Exception& error) {
      return error.message();
    } catch (const std::exception& error) {
      return str("another kind of error: ", error.what());
    }
    return "no error";
  }

  PassRegistry registry;
  PassOptions given;
};

TEST_F(PassRegistryTest, WhatIsNotGivenHasItsDefault) {
  registry.make("bucket");
  EXPECT_EQ(given.get_int("bytes"), 64);
  EXPECT_EQ(given.get_float("ratio"), 0.5);
  EXPECT_TRUE(given.get_bool("overlap"));
  EXPECT_EQ(given.get_string("order"), "size");
  EXPECT_TRUE(given.get_list("devices").empty());
  EXPECT_FALSE(given.is_given("devices"));
  registry.make("bucket(devices=[])");
  EXPECT_TRUE(given.is_given("devices"));  // empty, and said to be
  EXPECT_FALSE(given.is_given("bytes"));
}

TEST_F(PassRegistryTest, OptionsParseByTheirType) {
  registry.make(
      R"( bucket ( bytes = 4MiB , ratio=1e-3, overlap=false, order="by \"size\", then name", devices=[cpu:0, "cpu:1"] ) )");
  EXPECT_EQ(given.get_int("bytes"), 4 << 20);
  EXPECT_EQ(given.get_float("ratio"), 1e-3);
  EXPECT_FALSE(given.get_bool("overlap"));
  EXPECT_EQ(given.get_string("order"), "by \"size\", then name");
  EXPECT_THAT(given.get_list("devices"), ElementsAre("cpu:0", "cpu:1"));
  registry.make("bucket(bytes=-3, ratio=7, order=\"\", devices=[])");
  EXPECT_EQ(given.get_int("bytes"), -3);
  EXPECT_EQ(given.get_float("ratio"), 7);
  EXPECT_EQ(given.get_string("order"), "");
  EXPECT_TRUE(given.get_list("devices").empty());
  registry.make("bucket(bytes=2KiB)");
  EXPECT_EQ(given.get_int("bytes"), 2048);
  registry.make("bucket(bytes=1GiB)");
  EXPECT_EQ(given.get_int("bytes"), std::int64_t{1} << 30);
}

TEST_F(PassRegistryTest, APipelinePrintsAsTextThatParsesBack) {
  const std::string text =
      "replicate(n=4),plain,bucket(bytes=4MiB,order=\"a, \\\"b\\\" \\\\ c\",devices=[cpu:0,\"x y\"])";
  const PassPipeline pipeline = registry.parse_pipeline(text);
  EXPECT_EQ(pipeline.size(), 3U);
  EXPECT_EQ(pipeline.to_string(), text);
  EXPECT_EQ(registry.parse_pipeline(pipeline.to_string()).to_string(), text);
  EXPECT_EQ(registry.parse_pipeline(" replicate( n = 4 ) ,plain() ").to_string(), "replicate(n=4),plain");
  EXPECT_EQ(registry.parse_pipeline("  ").size(), 0U);
}

TEST_F(PassRegistryTest, AnUnknownPassIsAnErrorWithTheClosestNames) {
  EXPECT_EQ(error_of<UnknownPass>("plain,replicat(n=2)"),
            "no pass named 'replicat' is registered; did you mean 'replicate', 'plain', 'bucket'?");
  EXPECT_THROW(PassRegistry().make("plain"), UnknownPass);
  try {
    PassRegistry().parse_pipeline("mirror-variables");
    FAIL() << "it is known";
  } catch (const UnknownPass& error) {
    EXPECT_THAT(error.what(), HasSubstr("passes of strategies are registered by register_strategy_passes()"));
  }
}

TEST_F(PassRegistryTest, AnUnknownOptionIsAnErrorWithTheListOfOptions) {
  EXPECT_THAT(
      error_of<UnknownOption>("bucket(byte=4)"),
      HasSubstr("pass 'bucket' has no option 'byte'; it has 'bytes' (int, default 64), 'ratio' (float"));
  EXPECT_EQ(error_of<UnknownOption>("plain(n=4)"), "pass 'plain' has no option 'n'; it has no options");
  EXPECT_EQ(error_of<UnknownOption>("replicate"),
            "pass 'replicate' needs its option 'n'; it has 'n' (int, must be given)");
}

TEST_F(PassRegistryTest, AValueOfAnotherTypeIsAnError) {
  EXPECT_EQ(error_of<BadOptionValue>("bucket(bytes=many)"),
            "option 'bytes' of pass 'bucket' takes an int, as 4 or 64KiB, got 'many'");
  for (const char* text :
       {"bucket(bytes=4.5)", "bucket(bytes=4MB)", "bucket(bytes=99999999999999999999)",
        "bucket(bytes=9999999999GiB)", "bucket(bytes=\"\")", "bucket(bytes=[4])", "bucket(ratio=x)",
        "bucket(overlap=yes)", "bucket(devices=cpu:0)", "bucket(bytes=4,bytes=5)"}) {
    EXPECT_THROW(registry.make(text), BadOptionValue) << text;
  }
}

TEST_F(PassRegistryTest, ASyntaxErrorHasItsPosition) {
  const std::pair<const char*, std::size_t> cases[] = {{"plain,", 6},
                                                       {",plain", 0},
                                                       {"plain plain", 6},
                                                       {"plain(", 6},
                                                       {"bucket(bytes)", 12},
                                                       {"bucket(bytes=)", 13},
                                                       {"bucket(bytes=4", 14},
                                                       {"bucket(bytes=4 5)", 15},
                                                       {"bucket(order=\"x)", 16},
                                                       {"bucket(devices=[a,])", 18},
                                                       {"plain)", 5},
                                                       {"plain;", 5}};
  for (const auto& [text, position] : cases) {
    try {
      registry.parse_pipeline(text);
      ADD_FAILURE() << "parsed: " << text;
    } catch (const PipelineSyntaxError& error) {
      EXPECT_EQ(error.position(), position) << text << ": " << error.what();
    }
  }
  EXPECT_EQ(error_of<PipelineSyntaxError>("bucket(bytes=4"),
            "at 14: expected ',' or ')', got the end in 'bucket(bytes=4'");
  EXPECT_THROW(registry.make("plain,plain"), PipelineSyntaxError);
  EXPECT_THROW(registry.make(""), PipelineSyntaxError);
}

TEST_F(PassRegistryTest, ATakenNameIsAnError) {
  const auto nothing = [](const PassOptions&) { return std::make_unique<Nothing>("x"); };
  EXPECT_THROW(registry.add({.name = "plain", .summary = ""}, nothing), InvalidArgument);
  EXPECT_THROW(registry.add({.name = "Plain", .summary = ""}, nothing), InvalidArgument);
  EXPECT_THROW(registry.add({.name = "", .summary = ""}, nothing), InvalidArgument);
  EXPECT_THROW(registry.add({.name = "a", .summary = ""}, nullptr), InvalidArgument);
  EXPECT_THROW(registry.add({.name = "a", .summary = "", .options = {{"n", OptionType::kInt, 0.5}}}, nothing),
               InvalidArgument);
  EXPECT_THROW(registry.add({.name = "a", .summary = "", .options = {{"n"}, {"n"}}}, nothing),
               InvalidArgument);
}

TEST_F(PassRegistryTest, AskingForWhatWasNotDeclaredIsABugOfThePass) {
  registry.make("bucket");
  EXPECT_THROW(given.get_int("n"), Error);
  EXPECT_THROW(given.get_int("order"), Error);
}

// --- options declared once

struct Everything {
  std::int64_t count = 4;
  double rate = 0.5;
  bool flag = true;
  std::string order = "size";
  std::vector<std::string> devices = {};
  std::optional<std::int64_t> own = std::nullopt;  // no type of an option
};

TEST(OptionTable, ReadsAndPrintsWhatItDeclares) {
  const auto table = OptionTable<Everything>("all", "one of each")
                         .required("count", &Everything::count, "how many")
                         .option("rate", &Everything::rate, "how fast")
                         .option("flag", &Everything::flag, "whether")
                         .option("order", &Everything::order, "which first")
                         .option("devices", &Everything::devices, "where")
                         .option({"own", OptionType::kInt, std::int64_t{-1}, "by a function"},
                                 [](Everything& into, const PassOptions& from) {
                                   if (from.is_given("own")) into.own = from.get_int("own");
                                 });
  PassRegistry registry;
  Everything read;
  add_pass(registry, table, [&](const Everything& options) -> std::unique_ptr<Pass> {
    if (options.count == 13) throw InvalidArgument("13 is refused");
    read = options;
    return std::make_unique<Nothing>("all");
  });
  registry.make("all(count=2)");
  EXPECT_EQ(table.print(read), "all(count=2,rate=0.5)");
  EXPECT_FALSE(read.own.has_value());
  registry.make("all(count=7,flag=false,order=\"by name\",devices=[cpu:0,cpu:1],own=9)");
  EXPECT_EQ(read.own, 9);
  const std::string printed = table.print(read);
  EXPECT_EQ(printed, "all(count=7,rate=0.5,flag=false,order=\"by name\",devices=[cpu:0,cpu:1])");
  registry.make(printed);
  EXPECT_EQ(table.print(read), printed);
  EXPECT_THROW(registry.make("all"), UnknownOption);
  EXPECT_THROW(registry.make("all(count=13)"), BadOptionValue);
}

TEST(GlobalPassRegistry, HasTheGeneralPasses) {
  std::vector<std::string> names;
  for (const PassInfo& info : PassRegistry::global().passes()) {
    names.push_back(info.name);
    EXPECT_FALSE(info.summary.empty()) << info.name;
    std::string text = info.name;  // with what must be given
    for (const OptionSpec& option : info.options) {
      if (!option.fallback) text += str(text == info.name ? "(" : ",", option.name, "=2");
    }
    if (text != info.name) text += ")";
    EXPECT_EQ(PassRegistry::global().make(text)->name(), info.name);
  }
  EXPECT_THAT(names, ::testing::IsSupersetOf({"common-subexpression-elimination", "constant-folding",
                                              "dead-node-elimination", "identity-removal"}));
  EXPECT_EQ(PassRegistry::global().parse_pipeline("constant-folding(max_bytes=4KiB)").to_string(),
            "constant-folding(max_bytes=4096)");
}

}  // namespace
}  // namespace lockstep
