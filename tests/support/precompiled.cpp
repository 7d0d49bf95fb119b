// tests/support/precompiled.cpp - CMake makes a precompiled header for the sources of a target: this is one.
