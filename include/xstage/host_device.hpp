// One source for host and device: functions marked XSTAGE_HD compile for both under nvcc and are
// ordinary functions everywhere else.
#pragma once

#if defined(__CUDACC__)
#define XSTAGE_HD __host__ __device__
#else
#define XSTAGE_HD
#endif
