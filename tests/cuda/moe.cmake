# The fused MoE layer: on GPUs where there are some (77: there are none), its machine code everywhere.
foreach(name accuracy gemm fused long memory process shared)
  add_executable(moe_${name}_device moe_${name}_device.cu)
  target_compile_options(moe_${name}_device PRIVATE -std=c++20)
  target_link_libraries(moe_${name}_device PRIVATE xstage_moe)
  add_test(NAME moe_${name}_device COMMAND moe_${name}_device)
  set_tests_properties(moe_${name}_device PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 120)
endforeach()
add_test(NAME moe_machine_code
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/moe_code.py
          ${PROJECT_BINARY_DIR}/cuda-tools
          $<FILTER:$<TARGET_OBJECTS:xstage_moe>,INCLUDE,fused_w8a8>
          $<FILTER:$<TARGET_OBJECTS:xstage_moe>,INCLUDE,grouped_gemm_w8a8>
          $<FILTER:$<TARGET_OBJECTS:xstage_moe>,INCLUDE,fused_bf16>
          $<FILTER:$<TARGET_OBJECTS:xstage_moe>,INCLUDE,grouped_gemm_bf16>)
xstage_test(moe_sizes_test SOURCES moe_sizes_test.cpp LIBRARIES xstage_moe xstage_shapes)
