// The coordinator's status as JSON for clients. Addresses and paths are left out.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "proto/inference.pb.h"

namespace warpline {

// The document of GET /v1/status.
boost::json::object StatusJson(const v1::StatusResponse& status, const std::string& model_name);
// One model as GET /v1/models lists it.
boost::json::object ModelJson(const v1::StatusResponse& status, const std::string& model_name);
// Why the service is not ready; the coordinator's reason names the stages that are missing.
std::string NotReadyMessage(const v1::StatusResponse& status);

}  // namespace warpline
