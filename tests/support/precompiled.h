// tests/support/precompiled.h - what nearly every test includes, parsed once. Tests still include what they
// use.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/lockstep.h"
