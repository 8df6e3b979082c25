// What a result says about the build it was measured with.
#pragma once

#include <string_view>

namespace xstage {

/// Commit the sources were at, with "-modified" where files differed from it; empty outside a
/// repository.
std::string_view git_commit();

/// SHA-256 over the names and digests of the sources that a calibration runs. A result measured on
/// other kernels shows by it.
std::string_view kernel_digest();

/// The same of the fused MoE layer's kernel, with the headers whose orders, layouts and signals it
/// executes.
std::string_view moe_kernel_digest();

/// The same of the attention kernel and the exchanges around it.
std::string_view ulysses_kernel_digest();

}  // namespace xstage
