# Options and the one place where compiler flags are set.
option(XSTAGE_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(XSTAGE_CLI "Build the command line" ${PROJECT_IS_TOP_LEVEL})
option(XSTAGE_FUZZ "Build the fuzz targets too (clang, with XSTAGE_TESTS)" OFF)
option(XSTAGE_WARNINGS_AS_ERRORS "Treat compiler warnings as errors" ${PROJECT_IS_TOP_LEVEL})
set(XSTAGE_CUDA "auto" CACHE STRING "Build the CUDA room: auto, on or off")
set_property(CACHE XSTAGE_CUDA PROPERTY STRINGS auto on off)
# XSTAGE_CUDA_ON: whether the CUDA room is built. auto takes what is there.
set(XSTAGE_CUDA_ON OFF)
if(NOT XSTAGE_CUDA STREQUAL "off")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90a-real)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    set(XSTAGE_CUDA_ON ON)
  elseif(XSTAGE_CUDA STREQUAL "on")
    message(FATAL_ERROR "XSTAGE_CUDA is on, but nvcc is not found")
  endif()
endif()
# For the summary of check.sh: who compiled the kernels; empty where nobody did.
if(XSTAGE_CUDA_ON)
  set(XSTAGE_CUDA_BUILT_BY "${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}" CACHE INTERNAL "")
else()
  set(XSTAGE_CUDA_BUILT_BY "" CACHE INTERNAL "")
endif()
message(STATUS "xstage: CUDA room ${XSTAGE_CUDA_ON}")

set(XSTAGE_SANITIZE "" CACHE STRING "Sanitizers for all targets, as in -fsanitize=")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# For code where nothing is hot. The option parser's templates take a third longer to compile at -O3.
set(XSTAGE_COLD $<$<CONFIG:Release>:-O1>)

# Every target of ours links this; nothing of it is exported.
add_library(xstage_flags INTERFACE)
target_compile_features(xstage_flags INTERFACE cxx_std_20)
target_compile_options(xstage_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wdouble-promotion>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${XSTAGE_WARNINGS_AS_ERRORS}>>:-Werror>)
if(XSTAGE_SANITIZE)
  # -O0 for what is not hot: with clang a file of the command line then takes 7 s in place of 24.
  set(XSTAGE_COLD -O0)
  # Line numbers are enough for a report (-g takes half as long again to compile). Null pointers and
  # accesses past an object end in AddressSanitizer's own report; as checks of UBSan before every
  # member access they would double the time that the JSON code takes to compile.
  target_compile_options(xstage_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${XSTAGE_SANITIZE} -fno-omit-frame-pointer -g1>)
  if(XSTAGE_SANITIZE MATCHES "undefined")
    target_compile_options(xstage_flags INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=null,vptr,object-size>)
  endif()
  target_link_options(xstage_flags INTERFACE -fsanitize=${XSTAGE_SANITIZE})
endif()
