// core/export.h - which symbols a shared liblockstep shows to its users.
//
// Everything is compiled with hidden visibility; what a user may link against carries LOCKSTEP_API.
#pragma once

#if defined(_WIN32)
#define LOCKSTEP_API
#else
#define LOCKSTEP_API __attribute__((visibility("default")))
#endif
