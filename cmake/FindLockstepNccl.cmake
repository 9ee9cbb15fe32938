# Finds CUDA's runtime and NCCL: in LOCKSTEP_CUDA_ROOT, a site-packages folder with NVIDIA's wheels in nvidia/ or a CUDA toolkit,
# else where the system has them. Headers and libraries suffice; neither nvcc nor a GPU is needed to build.
#   LockstepNccl::nccl   headers (as system headers), libraries, rpath
set(_hints ${LOCKSTEP_CUDA_ROOT} ${LOCKSTEP_CUDA_ROOT}/nvidia/cu13 ${LOCKSTEP_CUDA_ROOT}/nvidia/nccl /usr/local/cuda)
find_path(LockstepNccl_CUDA_INCLUDE cuda_runtime_api.h HINTS ${_hints} PATH_SUFFIXES include)
find_path(LockstepNccl_NCCL_INCLUDE nccl.h HINTS ${_hints} PATH_SUFFIXES include)
# The wheels have no links without a version.
find_library(LockstepNccl_cudart NAMES cudart libcudart.so.13 libcudart.so.12 NAMES_PER_DIR HINTS ${_hints} PATH_SUFFIXES lib lib64)
find_library(LockstepNccl_nccl NAMES nccl libnccl.so.2 NAMES_PER_DIR HINTS ${_hints} PATH_SUFFIXES lib lib64)
mark_as_advanced(LockstepNccl_CUDA_INCLUDE LockstepNccl_NCCL_INCLUDE LockstepNccl_cudart LockstepNccl_nccl)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LockstepNccl REQUIRED_VARS LockstepNccl_CUDA_INCLUDE LockstepNccl_NCCL_INCLUDE LockstepNccl_cudart LockstepNccl_nccl
  REASON_FAILURE_MESSAGE "run ./check --cuda-build, which fetches them, or name their folder with -DLOCKSTEP_CUDA_ROOT=DIR")

if(LockstepNccl_FOUND AND NOT TARGET LockstepNccl::nccl)
  add_library(LockstepNccl::nccl INTERFACE IMPORTED)
  get_filename_component(_cudart_dir ${LockstepNccl_cudart} DIRECTORY)
  get_filename_component(_nccl_dir ${LockstepNccl_nccl} DIRECTORY)
  set_target_properties(LockstepNccl::nccl PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${LockstepNccl_CUDA_INCLUDE};${LockstepNccl_NCCL_INCLUDE}"
    INTERFACE_LINK_LIBRARIES "${LockstepNccl_nccl};${LockstepNccl_cudart}"
    INTERFACE_LINK_OPTIONS "LINKER:-rpath,${_nccl_dir};LINKER:-rpath,${_cudart_dir}")
endif()
