// An option that would be ignored is an error that names it and what it lacks or meets; and errors
// speak of options as they are typed.
#include <gtest/gtest.h>

#include "cli/xstage_process.hpp"

namespace xstage::test {
namespace {

const std::string kProfile = XSTAGE_SOURCE_DIR "/profiles/h200-nv18-x2.json";

std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word == "PROFILE" ? kProfile : word);
  return out;
}

struct Idle {
  const char* line;
  const char* option;  // that has no effect
  const char* beside;  // why
};

const char* const kLayer = " --hidden 256 --intermediate 128 --experts 4 --topk 2 --tokens 16";
const char* const kHeads = " --seq 256 --heads 4 --head-dim 64";

TEST(IdleOptions, AreErrorsThatNameBoth) {
  const std::string run_moe = std::string("run moe") + kLayer;
  const std::string run_ulysses = std::string("run ulysses") + kHeads;
  const std::string simulate = "simulate moe --profile PROFILE --shape lingbot-video";
  const std::string plan = "plan moe --profile PROFILE --shape lingbot-video";
  const std::pair<std::string, Idle> table[] = {
      {run_moe, {" --stop-before tiles", "--stop-before", "--stop-rank"}},
      {run_moe, {" --schedule wave --lead 4", "--lead", "--schedule wave"}},
      {run_moe, {" --schedule interleaved --group 1", "--group", "--schedule interleaved"}},
      {run_moe, {" --schedule auto --lead 4", "--lead", "--schedule auto"}},
      {run_moe, {" --schedule auto --group 1", "--group", "--schedule auto"}},
      {run_moe, {" --profile PROFILE", "--profile", "--schedule all"}},
      {run_moe, {" --no-check --check-every 2", "--check-every", "--no-check"}},
      {run_moe, {" --backend cuda --workers 3", "--workers", "--backend cuda"}},
      {run_moe, {" --backend cuda --block-m 32", "--block-m", "--backend cuda"}},
      {run_moe, {" --backend cuda --max-work 1e9", "--max-work", "--backend cuda"}},
      {run_moe, {" --backend cuda --stop-rank 1", "--stop-rank", "--backend cuda"}},
      {run_ulysses, {" --stop-before exchange", "--stop-before", "--stop-rank"}},
      {run_ulysses, {" --text-place after", "--text-place", "--text"}},
      {run_ulysses, {" --no-check --check-every 2", "--check-every", "--no-check"}},
      {run_ulysses, {" --backend cuda --wait-limit 5", "--wait-limit", "--backend cuda"}},
      {simulate, {" --lead 4", "--lead", "--schedule auto"}},
      {simulate, {" --schedule wave --lead 4", "--lead", "--schedule wave"}},
      {simulate, {" --schedule interleaved --group 4", "--group", "--schedule interleaved"}},
      {"simulate --profile PROFILE", {" moe --shape hy3", "--profile", "moe"}},
      {"simulate --burst-loop", {" ulysses", "--burst-loop", "ulysses"}},
      {"simulate --burst-loop --profile PROFILE", {" --trace t.json", "--trace", "--burst-loop"}},
      {"simulate --burst-loop --profile PROFILE", {" --bursts 3", "--bursts", "--align isolated"}},
      {"simulate --burst-loop --profile PROFILE --align isolated",
       {" --window-us 900", "--window-us", "--align isolated"}},
      {"simulate --burst-loop --profile PROFILE --align isolated",
       {" --gap-us 3", "--gap-us", "--align isolated"}},
      {plan, {" --threads 256", "--threads", "--mechanism"}},
      {plan, {" --from-spans spans.json", "--shape", "--from-spans"}},
      {"plan moe --profile PROFILE --from-spans s.json",
       {" --tflops 9", "--tflops", "--from-spans"}},
      {"plan ulysses --profile PROFILE --closed-form", {" --seed 4", "--seed", "--closed-form"}},
      {"bench moe --table sweep", {" --shape hy3", "--shape", "--table"}},
      {"bench moe --table peers", {" --tokens 9", "--tokens", "--table"}},
      {"bench moe --refit rows.json", {" --launches 4", "--launches", "--refit"}},
      {"bench ulysses --fit rows.json", {" --order row-major", "--order", "--fit"}},
      {"bench ulysses --table paper --predict", {" --rounds 40", "--rounds", "--predict"}},
      {"bench moe --table kernel", {" --kernel-times t.json", "--kernel-times", "--table kernel"}},
      {"bench moe --shape hy3 --predict", {" --launches 4", "--launches", "--predict"}},
      {"bench moe --cross-validate rows.json", {" --table peers", "--table", "--cross-validate"}},
      {"bench ulysses --table paper", {" --seq 4096", "--seq", "--table"}},
      {"bench ulysses --table paper", {" --replicate-kv-heads", "--replicate-kv-heads", "--table"}},
      {"calibrate --backend cuda", {" --profile PROFILE", "--profile", "--backend cuda"}},
      {"calibrate --backend sim", {" --seed 4", "--seed", "--validate"}},
      {"validate --profile PROFILE --schedule-samples s.csv", {" --folds", "--folds", "--samples"}},
      {"validate --profile PROFILE --schedule-samples s.csv", {" --gpu 1", "--gpu", "--samples"}}};
  for (const auto& [verb, idle] : table) {
    SCOPED_TRACE(verb + idle.line);
    const auto error = expect_failure(words(verb + idle.line), 2);
    EXPECT_EQ(error.value("field", ""), idle.option);
    const std::string message = error.value("message", "");
    EXPECT_NE(message.find(std::string(idle.option) + " has no effect"), std::string::npos)
        << message;
    EXPECT_NE(message.find(idle.beside), std::string::npos) << message;
  }
}

TEST(Errors, NameTheOptionAsItIsTyped) {
  const std::string ulysses = std::string("run ulysses") + kHeads;
  const std::pair<std::string, const char*> table[] = {
      {ulysses + " --kv-heads 1 --ranks 2", "--kv-heads"},
      {ulysses + " --ring 2", "--ring"},
      {ulysses + " --block-m 5000", "--block-m"},
      {"run ulysses --seq 256 --heads 4 --head-dim 12", "--head-dim"},
      {"run moe --hidden 256 --intermediate 130 --experts 4 --topk 2", "--intermediate"},
      {"predict --profile PROFILE --producers 132 --bytes 17 --gap-us 5", "--bytes"},
      {"predict --profile PROFILE --producers 132 --bytes 16 --gap-us -1", "--gap-us"},
      {"predict --profile PROFILE --producers many --bytes 16 --gap-us 1", "--producers"},
      {"predict --profile PROFILE --producers 1 --bytes 16 --gap-us 1 --gpu -1", "--gpu"},
      {"predict --producers 1 --bytes 16 --gap-us 1", "--profile"},
      {"plan moe --profile PROFILE --shape hy3 --out /no/such/folder/x", "--out"},
      {"simulate moe --profile PROFILE --shape hy3 --trace /no/such/folder/x", "--trace"}};
  for (const auto& [line, option] : table) {
    SCOPED_TRACE(line);
    const auto error = expect_failure(words(line), 2);
    EXPECT_EQ(error.value("field", ""), option) << error.dump();
    EXPECT_EQ(error.value("message", "").find('_'), std::string::npos) << error.dump();
    EXPECT_FALSE(error.value("allowed", "").empty());
  }
}

TEST(Errors, OfHeadsAreTheSameForEveryVerb) {
  // What run refuses, nobody plans; one source decides (layout::checked).
  const std::string one = " --seq 256 --head-dim 64 --heads 1 --ranks 2";
  const std::string grouped = " --seq 256 --head-dim 64 --heads 8 --kv-heads 2 --ranks 4";
  const std::string odd = " --seq 256 --head-dim 12 --heads 4";
  for (const char* verb : {"run ulysses", "plan ulysses --profile PROFILE",
                           "simulate ulysses --profile PROFILE", "bench ulysses --predict"}) {
    SCOPED_TRACE(verb);
    for (const auto& [layer, option] :
         {std::pair{one, "--kv-heads"}, std::pair{grouped, "--kv-heads"},
          std::pair{odd, "--head-dim"}}) {
      const auto error = expect_failure(words(verb + layer), 2);
      EXPECT_EQ(error.value("field", ""), option) << error.dump();
    }
    EXPECT_EQ(xstage(words(verb + grouped + " --replicate-kv-heads")).exit_code, 0);
  }
}

TEST(Errors, PointToTheHelpOfTheLayer) {
  for (const char* verb : {"run moe", "run ulysses", "plan moe", "simulate ulysses", "bench moe",
                           "predict", "calibrate"}) {
    const auto error = expect_failure(words(std::string(verb) + " --no-such-option"), 2);
    EXPECT_NE(error.value("message", "").find("'xstage " + std::string(verb) + " --help'"),
              std::string::npos)
        << error.dump();
  }
}

}  // namespace
}  // namespace xstage::test
