# The mpi backend is built where OpenMPI is found; elsewhere one file says that it is missing.
#   LOCKSTEP_MPI_PACKAGES   what comm links
#   LOCKSTEP_MPI_EXCLUDE    the files of comm/mpi that are not built
option(LOCKSTEP_WITH_MPI "Build the mpi backend if MPI is found" ON)
if(LOCKSTEP_WITH_MPI)
  set(MPI_CXX_SKIP_MPICXX ON)  # the C interface; C++ bindings are gone from MPI
  find_package(MPI COMPONENTS CXX)
endif()
if(LOCKSTEP_WITH_MPI AND MPI_CXX_FOUND)
  set(LOCKSTEP_HAS_MPI ON)
  set(LOCKSTEP_MPI_PACKAGES MPI::MPI_CXX)
  set(LOCKSTEP_MPI_EXCLUDE ${CMAKE_SOURCE_DIR}/src/lockstep/comm/mpi/absent.cc)
else()
  set(LOCKSTEP_HAS_MPI OFF)
  set(LOCKSTEP_MPI_PACKAGES "")
  file(GLOB LOCKSTEP_MPI_EXCLUDE CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/lockstep/comm/mpi/*.cc)
  list(REMOVE_ITEM LOCKSTEP_MPI_EXCLUDE ${CMAKE_SOURCE_DIR}/src/lockstep/comm/mpi/absent.cc)
endif()
