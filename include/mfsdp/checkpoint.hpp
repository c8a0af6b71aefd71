// mfsdp::checkpoint: save, load and export models. For users who link the component `checkpoint`,
// which needs nlohmann/json.
#pragma once

#include "mfsdp/checkpoint/background.hpp"
#include "mfsdp/checkpoint/export.hpp"
#include "mfsdp/checkpoint/load.hpp"
#include "mfsdp/checkpoint/save.hpp"
