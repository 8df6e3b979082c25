// What layers are accepted, with the rule that refuses the others. Host only.
#pragma once

#include <vector>

#include "xstage/layout/moe.hpp"
#include "xstage/layout/ulysses.hpp"
#include "xstage/result.hpp"

namespace xstage::layout {

/// The layout of a configuration; the error names the field, its value and the rule.
Result<MoeLayout> checked(const MoeConfig& config);
Result<UlyssesLayout> checked(const UlyssesConfig& config);

/// Whether all ranks were given the same configuration; the error names the first field that
/// differs and the ranks that differ. To be called with the gathered configurations on every rank,
/// so that every rank ends with the same error.
Result<MoeConfig> agreed(const std::vector<MoeConfig>& of_rank);
Result<UlyssesConfig> agreed(const std::vector<UlyssesConfig>& of_rank);

/// Where a joint sequence's text rows stand, and whether every rank has all of them.
enum class TextRows : std::int32_t { kNone, kBefore, kAfter, kBeforeOnAll, kAfterOnAll };

struct Text {
  std::int64_t rows = 0;
  TextRows place = TextRows::kNone;
};

/// `rows` in shards that follow each other and differ by at most one row.
std::vector<RowSegment> sharded(std::int64_t rows, std::int32_t ranks);

/// The same for `rows` image rows with text. Sharded text lies at its rank as in the sequence,
/// before or behind the image rows; text that every rank wants lies before them in either case,
/// since shards may differ in length.
std::vector<RowSegment> sharded_with_text(const Text& text, std::int64_t rows, std::int32_t ranks);

/// Puts a table into a configuration; one that is too long is refused by checked().
void set_segments(UlyssesConfig& config, const std::vector<RowSegment>& segments);
void set_key_segments(UlyssesConfig& config, const std::vector<RowSegment>& segments);

/// Output rows come from a table of segments: sorted, without gaps or overlaps, every destination
/// row written once. Returns the rows that each rank receives.
Result<std::vector<std::int64_t>> check_segments(const std::vector<RowSegment>& segments,
                                                 std::int64_t rows, std::int32_t ranks);

/// Tensor memory access needs 16-byte steps: refuses, by name, strides and addresses it cannot
/// take.
Result<TensorView> check_view(const char* name, const TensorView& view, const TensorView& wanted);

}  // namespace xstage::layout
