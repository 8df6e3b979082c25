# Attention: on a GPU where there is one; its machine code everywhere.
foreach(name attention fused litmus)
  xstage_test(ulysses_${name}_test SOURCES ulysses_${name}_test.cu
    LIBRARIES xstage_ulysses xstage_cuda_flags)
endforeach()
add_test(NAME ulysses_machine_code
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/ulysses_code.py
          ${PROJECT_BINARY_DIR}/cuda-tools $<FILTER:$<TARGET_OBJECTS:xstage_ulysses>,INCLUDE,attention>)
xstage_test(ulysses_layer_test SOURCES ulysses_layer_test.cpp
  LIBRARIES xstage_ulysses xstage_cpu xstage_probe)
xstage_test(ulysses_shared_test SOURCES ulysses_shared_test.cpp
  LIBRARIES xstage_ulysses xstage_cpu xstage_probe)
