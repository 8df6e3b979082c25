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

# Kernels and what they include, at any depth, of src/cuda and of the headers shared with the host:
# a wrapper that one layer uses leaves results of the other as they are, and so does host code.
function(kernel_sources out)
  file(GLOB waiting RELATIVE ${SOURCE_DIR} ${ARGN})
  set(sources "")
  while(waiting)
    list(GET waiting 0 source)
    list(REMOVE_AT waiting 0)
    list(FIND sources ${source} known)
    if(NOT known EQUAL -1)
      continue()
    endif()
    list(APPEND sources ${source})
    file(STRINGS ${SOURCE_DIR}/${source} lines REGEX "^#include \"")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^#include \"([^\"]*)\".*" "\\1" name "${line}")
      if(name MATCHES "^cuda/")
        list(APPEND waiting src/${name})
      elseif(name MATCHES "^xstage/(layout|schedule|sync)/" AND NOT name MATCHES "check[.]hpp$")
        list(APPEND waiting include/${name})
      endif()
    endforeach()
  endwhile()
  list(TRANSFORM sources PREPEND ${SOURCE_DIR}/)
  set(${out} ${sources} PARENT_SCOPE)
endfunction()

set(cuda ${SOURCE_DIR}/src/cuda)
digest_of(digest
  ${cuda}/probe/*.cu ${cuda}/probe/*.cuh ${cuda}/probe/records.hpp
  ${cuda}/comm/*.cu ${cuda}/comm/*.cuh ${cuda}/device_policy.cuh
  ${cuda}/ptx/bulk.cuh ${cuda}/ptx/clock.cuh ${cuda}/ptx/store.cuh ${cuda}/ptx/sync.cuh
  ${SOURCE_DIR}/include/xstage/span.cuh)
kernel_sources(sources
  ${cuda}/ulysses/attention.cu ${cuda}/ulysses/exchange.cu ${cuda}/ulysses/per_destination.cu)
digest_of(ulysses_digest ${sources})
kernel_sources(sources ${cuda}/moe/fused*.cu ${cuda}/moe/grouped_gemm*.cu)
digest_of(moe_digest ${sources})

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
