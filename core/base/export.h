// core/base/export.h - which symbols a shared liblockstep shows to its users.
//
// Everything is compiled with hidden visibility; symbols that users may link against carry LOCKSTEP_API.
#pragma once

#if defined(_WIN32)
#define LOCKSTEP_API
#else
#define LOCKSTEP_API __attribute__((visibility("default")))
#endif
