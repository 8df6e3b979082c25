# Run by ctest: install, configure, build, run. Any step that fails ends the test.
file(REMOVE_RECURSE ${WORK})

function(step what)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${what} failed (${result}):\n${out}\n${err}")
  endif()
  message(STATUS "${what}: ${out}")
endfunction()

step("install" ${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix)
# A consumer of a sanitized library must be sanitized too.
set(flags "")
if(SANITIZE)
  set(flags "-fsanitize=${SANITIZE}")
endif()
step("configure" ${CMAKE_COMMAND} -S ${SOURCE}/examples/schedule_in_your_kernel -B ${WORK}/build
     -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_PREFIX_PATH=${WORK}/prefix -DCMAKE_CXX_FLAGS=${flags})
step("build" ${CMAKE_COMMAND} --build ${WORK}/build)
step("workers" ${WORK}/build/workers)
step("cost" ${WORK}/build/cost ${WORK}/prefix/share/xstage/profiles/h200-nv18-x2.json)
# The headers need nothing of the source tree.
file(GLOB_RECURSE leaked ${WORK}/prefix/*.cmake)
foreach(file ${leaked})
  file(READ ${file} text)
  string(FIND "${text}" "${SOURCE}" at)
  if(NOT at EQUAL -1)
    message(FATAL_ERROR "${file} names the source tree")
  endif()
endforeach()
