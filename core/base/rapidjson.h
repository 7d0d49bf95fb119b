// core/base/rapidjson.h - RapidJSON: the copy that comes with Cereal, or another if a distribution makes Cereal use its own.
//
// Not installed: nothing of it is in a public header.
#pragma once

#include <cereal/archives/json.hpp>

namespace lockstep::internal {

#ifdef CEREAL_RAPIDJSON_NAMESPACE
namespace json = CEREAL_RAPIDJSON_NAMESPACE;
#else
namespace json = RAPIDJSON_NAMESPACE;
#endif

}  // namespace lockstep::internal
