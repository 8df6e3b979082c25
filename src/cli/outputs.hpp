// Files that a verb will write: refused before the work, not after it.
#pragma once

#include <string>

namespace xstage::cli {

/// Throws the Failure that writing `path` would end in: no such directory, no permission, a
/// directory in its place. Leaves nothing behind. An empty path is a file that nobody asked for.
void probe_output(const std::string& path);

}  // namespace xstage::cli
