# mfsdp::checkpoint, for this project and for those who ask find_package for the component checkpoint.
add_library(mfsdp_checkpoint INTERFACE IMPORTED GLOBAL)
add_library(mfsdp::checkpoint ALIAS mfsdp_checkpoint)
target_link_libraries(mfsdp_checkpoint INTERFACE mfsdp::mfsdp nlohmann_json::nlohmann_json)
