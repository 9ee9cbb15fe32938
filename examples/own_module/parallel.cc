// Trains the classifier; the lines in which single.cc and parallel.cc differ are what several ranks need.
#include "classifier.h"
#include "lockstep/distributed/init.h"
#include "lockstep/parallel/data/data_parallel.h"

int main(int, char** argv) {
  auto world = lockstep::init();
  torch::manual_seed(1);
  Classifier model;
  lockstep::parallel::DataParallel data_parallel(*model, *world);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int64_t step = 0; step < 60; ++step) {
    Batch batch = make_batch(step);
    batch.images = batch.images.chunk(world->size())[world->rank()];
    batch.quadrants = batch.quadrants.chunk(world->size())[world->rank()];
    optimizer.zero_grad();
    torch::Tensor loss = torch::nn::functional::cross_entropy(model->forward(batch.images), batch.quadrants);
    loss.backward();
    optimizer.step();
    if (step % 10 == 9) std::printf("step %ld loss %.4f\n", step + 1, loss.item<double>());
  }
  if (world->rank() == 0) write_weights(*model, argv[1]);
}
