// tests/docs/fixture.h - what the examples of a page may include and use.
#pragma once

#include <any>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.h"
#include "lockstep/strategies/compat.h"

using namespace lockstep;  // NOLINT(google-build-using-namespace)
