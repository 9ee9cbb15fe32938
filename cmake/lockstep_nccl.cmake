# The nccl backend is built when asked for; otherwise one file says that it is missing.
#   LOCKSTEP_NCCL_PACKAGES   what comm links
#   LOCKSTEP_NCCL_EXCLUDE    the files of comm/nccl that are not built
option(LOCKSTEP_CUDA "Build the nccl backend" OFF)
set(LOCKSTEP_CUDA_ROOT "" CACHE PATH "Where CUDA's runtime and NCCL are (see FindLockstepNccl.cmake); empty: the system's")
if(LOCKSTEP_CUDA)
  find_package(LockstepNccl REQUIRED)
  set(LOCKSTEP_NCCL_PACKAGES LockstepNccl::nccl)
  set(LOCKSTEP_NCCL_EXCLUDE ${CMAKE_SOURCE_DIR}/src/lockstep/comm/nccl/absent.cc)
else()
  set(LOCKSTEP_NCCL_PACKAGES "")
  file(GLOB LOCKSTEP_NCCL_EXCLUDE CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/lockstep/comm/nccl/*.cc)
  list(REMOVE_ITEM LOCKSTEP_NCCL_EXCLUDE ${CMAKE_SOURCE_DIR}/src/lockstep/comm/nccl/absent.cc)
endif()
