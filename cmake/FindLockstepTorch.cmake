# Finds libtorch in LOCKSTEP_TORCH_DIR or in the torch wheel under .deps/, CPU or CUDA builds alike.
# libtorch's own CMake package refuses a CUDA build on a machine without the CUDA toolkit; this needs only headers and libraries.
#   LockstepTorch::torch   headers (as system headers), libraries, rpath
if(NOT LOCKSTEP_TORCH_DIR)
  file(GLOB _wheel ${CMAKE_CURRENT_LIST_DIR}/../.deps/python/lib/python3*/site-packages/torch)
  if(_wheel)
    list(GET _wheel 0 LOCKSTEP_TORCH_DIR)
  endif()
endif()
find_path(LockstepTorch_INCLUDE torch/csrc/api/include/torch/torch.h PATHS "${LOCKSTEP_TORCH_DIR}/include" NO_DEFAULT_PATH)
find_library(LockstepTorch_torch torch PATHS "${LOCKSTEP_TORCH_DIR}/lib" NO_DEFAULT_PATH)
find_library(LockstepTorch_torch_cpu torch_cpu PATHS "${LOCKSTEP_TORCH_DIR}/lib" NO_DEFAULT_PATH)
find_library(LockstepTorch_c10 c10 PATHS "${LOCKSTEP_TORCH_DIR}/lib" NO_DEFAULT_PATH)
find_library(LockstepTorch_torch_cuda torch_cuda PATHS "${LOCKSTEP_TORCH_DIR}/lib" NO_DEFAULT_PATH)
find_library(LockstepTorch_c10_cuda c10_cuda PATHS "${LOCKSTEP_TORCH_DIR}/lib" NO_DEFAULT_PATH)
mark_as_advanced(LockstepTorch_INCLUDE LockstepTorch_torch LockstepTorch_torch_cpu LockstepTorch_c10 LockstepTorch_torch_cuda
                 LockstepTorch_c10_cuda)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LockstepTorch REQUIRED_VARS LockstepTorch_INCLUDE LockstepTorch_torch LockstepTorch_torch_cpu LockstepTorch_c10
  REASON_FAILURE_MESSAGE "run ./run setup, or name a libtorch with -DLOCKSTEP_TORCH_DIR=DIR (the folder with include/ and lib/)")

if(LockstepTorch_FOUND AND NOT TARGET LockstepTorch::torch)
  add_library(LockstepTorch::torch INTERFACE IMPORTED)
  set_target_properties(LockstepTorch::torch PROPERTIES INTERFACE_INCLUDE_DIRECTORIES
    "${LockstepTorch_INCLUDE};${LockstepTorch_INCLUDE}/torch/csrc/api/include")
  set(_libraries ${LockstepTorch_torch} ${LockstepTorch_torch_cpu} ${LockstepTorch_c10})
  if(LockstepTorch_torch_cuda)
    list(APPEND _libraries ${LockstepTorch_torch_cuda} ${LockstepTorch_c10_cuda})
  endif()
  get_filename_component(_lib_dir ${LockstepTorch_c10} DIRECTORY)
  set_target_properties(LockstepTorch::torch PROPERTIES
    INTERFACE_LINK_LIBRARIES "${_libraries}"
    INTERFACE_LINK_OPTIONS "LINKER:--no-as-needed;LINKER:-rpath,${_lib_dir}")
endif()
