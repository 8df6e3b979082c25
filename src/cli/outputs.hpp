// Files that a verb will write: refused before the work, not after it.
#pragma once

#include <string>
#include <vector>

namespace xstage::cli {

/// A file to be written: the option that names it, and what it will hold.
struct Output {
  std::string option;
  std::string path;  ///< empty: nobody asked for it
  /// A document's format without its version ("xstage.plan"), or one of the kinds below.
  std::string kind;
  bool predicted = false;  ///< without measurements: it does not replace a document that has some
};

inline constexpr const char* kPage = "a page of xstage report";
inline constexpr const char* kTimeline = "a timeline of xstage";
inline constexpr const char* kSamples = "a table of samples";

/// Throws the Failure that writing one of them would end in: no such directory, no permission, a
/// directory in its place. A file that is there is replaced whole where it is empty or of the same
/// kind, unless predictions would replace measurements, and is refused otherwise; so are two
/// outputs in one file. Leaves nothing behind.
void check_outputs(const std::vector<Output>& outputs);

}  // namespace xstage::cli
