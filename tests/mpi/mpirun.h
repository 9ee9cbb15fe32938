// Jobs of mpirun for tests.
#pragma once

#include "job.h"

namespace lockstep::multiprocess {

// This machine can run mpirun.
bool has_mpirun();

// mpirun with more ranks than processors, as any user, and what else is given.
std::vector<std::string> mpirun(int ranks, const std::vector<std::string>& options = {});

#define SKIP_WITHOUT_MPIRUN() \
  if (!has_mpirun()) GTEST_SKIP() << "mpirun is not installed"

}  // namespace lockstep::multiprocess
