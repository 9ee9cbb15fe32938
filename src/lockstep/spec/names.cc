#include "lockstep/spec/names.h"

namespace lockstep::spec {

const Names<Norm>& names_of(Norm) {
  static const Names<Norm> names = {{"layernorm", Norm::layernorm}, {"rmsnorm", Norm::rmsnorm}};
  return names;
}

const Names<Activation>& names_of(Activation) {
  static const Names<Activation> names = {
      {"gelu", Activation::gelu}, {"gelu_tanh", Activation::gelu_tanh}, {"swiglu", Activation::swiglu}};
  return names;
}

const Names<Position>& names_of(Position) {
  static const Names<Position> names = {{"learned", Position::learned}, {"rope", Position::rope}};
  return names;
}

const Names<DataFormat>& names_of(DataFormat) {
  static const Names<DataFormat> names = {{"bytes", DataFormat::bytes},
                                          {"tokens_u16", DataFormat::tokens_u16},
                                          {"tokens_u32", DataFormat::tokens_u32},
                                          {"synthetic", DataFormat::synthetic}};
  return names;
}

const Names<Precision>& names_of(Precision) {
  static const Names<Precision> names = {
      {"fp32", Precision::fp32}, {"fp64", Precision::fp64}, {"bf16", Precision::bf16}, {"fp16", Precision::fp16}};
  return names;
}

const Names<GradientDtype>& names_of(GradientDtype) {
  static const Names<GradientDtype> names = {{"fp32", GradientDtype::fp32}, {"model", GradientDtype::model}};
  return names;
}

const Names<OptimizerKind>& names_of(OptimizerKind) {
  static const Names<OptimizerKind> names = {{"adamw", OptimizerKind::adamw}, {"sgd", OptimizerKind::sgd}};
  return names;
}

const Names<Decay>& names_of(Decay) {
  static const Names<Decay> names = {{"none", Decay::none}, {"linear", Decay::linear}, {"cosine", Decay::cosine}};
  return names;
}

const Names<Reduction>& names_of(Reduction) {
  static const Names<Reduction> names = {{"fast", Reduction::fast}, {"fixed_tree", Reduction::fixed_tree}};
  return names;
}

const Names<Recompute>& names_of(Recompute) {
  static const Names<Recompute> names = {{"none", Recompute::none},
                                         {"full", Recompute::full},
                                         {"sqrt", Recompute::sqrt},
                                         {"selective", Recompute::selective},
                                         {"stage", Recompute::stage}};
  return names;
}

const Names<Gather>& names_of(Gather) {
  static const Names<Gather> names = {{"layer", Gather::layer}, {"stage", Gather::stage}};
  return names;
}

const Names<GradientReduction>& names_of(GradientReduction) {
  static const Names<GradientReduction> names = {{"deferred", GradientReduction::deferred},
                                                 {"immediate", GradientReduction::immediate}};
  return names;
}

const Names<DeviceChoice>& names_of(DeviceChoice) {
  static const Names<DeviceChoice> names = {
      {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}, {"auto", DeviceChoice::automatic}};
  return names;
}

}  // namespace lockstep::spec
