#include "shapes/shapes.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace xstage::shapes {
namespace {

TEST(Shapes, EmbeddedTablesAreTheFilesOfTheProject) {
  std::ifstream in(XSTAGE_SOURCE_DIR "/data/shapes/moe.json");
  std::stringstream text;
  text << in.rdbuf();
  const auto read = parse_moe_shapes(text.str()).value();
  ASSERT_EQ(read.size(), moe_shapes().size());
  for (std::size_t i = 0; i < read.size(); ++i) EXPECT_EQ(read[i].name, moe_shapes()[i].name);
  EXPECT_EQ(find_moe_shape("lingbot-video").value().intermediate, 768);
  EXPECT_EQ(find_attention_shape("wan2.1-14b").value().seq.at(1), 75600);
  EXPECT_EQ(find_attention_shape("paper").value().heads_local, 4);
}

TEST(Shapes, UnknownNameListsTheKnownOnes) {
  const auto found = find_moe_shape("nonsense");
  ASSERT_FALSE(found.ok());
  EXPECT_EQ(found.error().value, "nonsense");
  EXPECT_NE(found.error().allowed.find("hy3"), std::string::npos);
}

TEST(Shapes, CapitalsOfANameDoNotCount) {
  EXPECT_EQ(find_attention_shape("FLUX.1").value().name, "flux.1");
  EXPECT_EQ(find_attention_shape("Wan2.1-14B").value().name, "wan2.1-14b");
  EXPECT_EQ(find_moe_shape("DeepSeek-V4-Pro").value().name, "deepseek-v4-pro");
}

TEST(Shapes, NearMissesAreToldWhatWasMeant) {
  const auto says = [](const Error& error) { return error.what; };
  EXPECT_EQ(says(find_attention_shape("flux1").error()), "no such shape; did you mean flux.1?");
  EXPECT_EQ(says(find_attention_shape("FLUX.2").error()),
            "no such shape; did you mean flux.2-dev?");
  EXPECT_EQ(says(find_moe_shape("lingbot").error()), "no such shape; did you mean lingbot-video?");
  EXPECT_EQ(says(find_moe_shape("glm5").error()), "no such shape; did you mean glm-5?");
  EXPECT_EQ(says(find_moe_shape("deepseek-v4-flsh").error()),
            "no such shape; did you mean deepseek-v4-flash?");
  for (const std::string& other :
       {std::string("nonsense"), std::string(), std::string(100000, 'g')})
    EXPECT_EQ(says(find_moe_shape(other).error()), "no such shape");
}

TEST(Shapes, BadTablesAreRefusedWithTheField) {
  const std::string good = R"("name":"a","hidden":8,"intermediate":8,"experts":8,"topk":2)";
  EXPECT_TRUE(parse_moe_shapes("{\"layers\":[{" + good + "}]}").ok());
  for (
      const char* text :
      {"", "[]", "{}", R"({"layers":3})", R"({"layers":[3]})", R"({"layers":[{}]})",
       R"({"layers":[{"name":"a","hidden":-1,"intermediate":8,"experts":8,"topk":2}]})",
       R"({"layers":[{"name":"a","hidden":1.5,"intermediate":8,"experts":8,"topk":2}]})",
       R"({"layers":[{"name":"a","hidden":18446744073709551615,"intermediate":8,"experts":8,"topk":2}]})",
       R"({"layers":[{"name":"a","hidden":8,"intermediate":8,"experts":8,"topk":9}]})",
       R"({"layers":[{"name":"","hidden":8,"intermediate":8,"experts":8,"topk":2}]})",
       R"({"layers":[{"name":7,"hidden":8,"intermediate":8,"experts":8,"topk":2}]})"}) {
    const auto read = parse_moe_shapes(text);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.error().kind, ErrorKind::kBadInput);
    EXPECT_FALSE(read.error().field.empty()) << text;
  }
  for (const char* text :
       {R"({"models":[{"name":"a","head_dim":64,"seq":[1]}]})",
        R"({"models":[{"name":"a","heads":4,"heads_local":4,"head_dim":64,"seq":[1]}]})",
        R"({"models":[{"name":"a","heads":4,"head_dim":64,"seq":[]}]})",
        R"({"models":[{"name":"a","heads":4,"head_dim":64,"seq":["x"]}]})"})
    EXPECT_FALSE(parse_attention_shapes(text).ok()) << text;
}

}  // namespace
}  // namespace xstage::shapes
