# Writes OUTPUT, a source file with what a result must say about the build: the git commit of
# SOURCE_DIR and the digest of the kernel sources. Untouched where nothing changed.
execute_process(COMMAND git -C ${SOURCE_DIR} rev-parse HEAD
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
execute_process(COMMAND git -C ${SOURCE_DIR} status --porcelain --untracked-files=no
                OUTPUT_VARIABLE changes OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(commit AND changes)
  string(APPEND commit "-modified")
endif()

# SHA-256 over names and digests of sources.
function(digest_of out)
  file(GLOB_RECURSE sources RELATIVE ${SOURCE_DIR} ${ARGN})
  list(SORT sources)
  set(digests "")
  foreach(source IN LISTS sources)
    file(SHA256 ${SOURCE_DIR}/${source} digest)
    string(APPEND digests "${source} ${digest}\n")
  endforeach()
  string(SHA256 digest "${digests}")
  set(${out} ${digest} PARENT_SCOPE)
endfunction()

# The sources that a calibration runs, and of ptx/ what they include; fused layers have results of
# their own.
set(cuda ${SOURCE_DIR}/src/cuda)
digest_of(digest
  ${cuda}/probe/*.cu ${cuda}/probe/*.cuh ${cuda}/probe/records.hpp
  ${cuda}/comm/*.cu ${cuda}/comm/*.cuh ${cuda}/device_policy.cuh
  ${cuda}/ptx/bulk.cuh ${cuda}/ptx/clock.cuh ${cuda}/ptx/store.cuh ${cuda}/ptx/sync.cuh
  ${SOURCE_DIR}/include/xstage/span.cuh)
digest_of(ulysses_digest
  ${cuda}/ulysses/*.cu ${cuda}/ulysses/*.cuh ${cuda}/ulysses/*.hpp ${cuda}/ptx/*.cuh
  ${cuda}/device_policy.cuh ${SOURCE_DIR}/include/xstage/layout/ulysses*.hpp
  ${SOURCE_DIR}/include/xstage/sync/*.hpp)
digest_of(moe_digest
  ${SOURCE_DIR}/src/cuda/moe/*.cuh ${SOURCE_DIR}/src/cuda/moe/fused*
  ${SOURCE_DIR}/src/cuda/moe/grouped_gemm.* ${SOURCE_DIR}/src/cuda/ptx/*.cuh
  ${SOURCE_DIR}/src/cuda/device_policy.cuh ${SOURCE_DIR}/include/xstage/schedule/*.hpp
  ${SOURCE_DIR}/include/xstage/layout/moe.hpp ${SOURCE_DIR}/include/xstage/sync/*.hpp)

set(text "#include \"cuda/build_info.hpp\"

namespace xstage {

std::string_view git_commit() { return \"${commit}\"; }
std::string_view kernel_digest() { return \"${digest}\"; }
std::string_view moe_kernel_digest() { return \"${moe_digest}\"; }
std::string_view ulysses_kernel_digest() { return \"${ulysses_digest}\"; }

}  // namespace xstage
")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
