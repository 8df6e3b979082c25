// One source for host and device: functions marked XSTAGE_HD compile for both under nvcc and are
// ordinary functions everywhere else.
#pragma once

#if defined(__CUDACC__)
#define XSTAGE_HD __host__ __device__
/// Before a template for both that calls what it was given, which may exist on one side only.
#define XSTAGE_HD_CALLS _Pragma("nv_exec_check_disable")
#else
#define XSTAGE_HD
#define XSTAGE_HD_CALLS
#endif
