// Trains the classifier; the lines in which single.cc and parallel.cc differ are what several ranks need.
#include "classifier.h"

int main(int, char** argv) {
  torch::manual_seed(1);
  Classifier model;
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int64_t step = 0; step < 60; ++step) {
    Batch batch = make_batch(step);
    optimizer.zero_grad();
    torch::Tensor loss = torch::nn::functional::cross_entropy(model->forward(batch.images), batch.quadrants);
    loss.backward();
    optimizer.step();
    if (step % 10 == 9) std::printf("step %ld loss %.4f\n", step + 1, loss.item<double>());
  }
  write_weights(*model, argv[1]);
}
