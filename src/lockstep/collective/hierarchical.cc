// Hierarchical: inside a host over its fast links, between hosts over the slow ones, which then carry the least there
// can be. Each host has a leader, its first rank or the root. all_reduce on hosts of equal size needs none: rank j of
// every host takes part j of the vector to its fellows on the other hosts, so every rank's slow link works.
#include <algorithm>
#include <map>

#include "lockstep/collective/families.h"
#include "lockstep/collective/phases.h"

namespace lockstep::collective::hierarchical {
namespace {

struct Hosts {
  std::vector<Group> inside;  // per host: its ranks, leader first; blocks: each rank's (not in an all_to_all)
  Group leaders;              // member 0: the root's host, or rank 0's; blocks: all of the host
};

Hosts hosts_of(const Builder& builder, const Shape& shape) {
  const Group all = everyone(builder);
  std::map<int, size_t> index;
  Hosts hosts;
  for (int i = 0; i < all.size(); ++i) {
    const int host = shape.host_of_rank.empty() ? 0 : shape.host_of_rank[static_cast<size_t>(all.rank(i))];
    const auto [found, is_new] = index.try_emplace(host, hosts.inside.size());
    if (is_new) hosts.inside.emplace_back();
    Group& group = hosts.inside[found->second];
    group.ranks.push_back(all.rank(i));
    group.blocks.push_back(all.block(i));
  }
  for (const Group& group : hosts.inside) {
    hosts.leaders.ranks.push_back(group.rank(0));
    hosts.leaders.blocks.push_back(blocks_of(group, 0, group.size()));
  }
  return hosts;
}

using Phase = void (*)(Builder&, const Group&);

void in_each(Builder& builder, const std::vector<Group>& groups, Phase phase) {
  builder.side_by_side(static_cast<int>(groups.size()), [&](int i) { phase(builder, groups[static_cast<size_t>(i)]); });
}

// The same, where every rank is to have or to give all pieces and not only its host's.
void in_each_with_all(Builder& builder, std::vector<Group> groups, Phase phase) {
  for (Group& group : groups) group.blocks = std::vector<Pieces>{Pieces{builder.all()}};
  in_each(builder, groups, phase);
}

bool equal_sizes(const Hosts& hosts) {
  return std::ranges::all_of(hosts.inside, [&](const Group& g) { return g.size() == hosts.inside[0].size(); });
}

// What `from` sends to the ranks `to` in an all_to_all.
Pieces pairs(const Builder& builder, int from, const std::vector<int>& to) {
  Group group{to, {}};
  for (const int rank : to) group.blocks.push_back({{from * builder.ranks() + rank, 1}});
  return blocks_of(group, 0, group.size());
}

// Pieces: part j of the vector is cut into one piece per host, j * hosts + host.
void all_reduce_in_parts(Builder& builder, Hosts hosts) {
  const int host_count = hosts.leaders.size(), per_host = hosts.inside[0].size();
  std::vector<Group> across(static_cast<size_t>(per_host));
  for (int host = 0; host < host_count; ++host) {
    Group& group = hosts.inside[static_cast<size_t>(host)];
    for (int j = 0; j < per_host; ++j) {
      group.blocks[static_cast<size_t>(j)] = {{j * host_count, host_count}};
      across[static_cast<size_t>(j)].ranks.push_back(group.rank(j));
      across[static_cast<size_t>(j)].blocks.push_back({{j * host_count + host, 1}});
    }
  }
  in_each(builder, hosts.inside, direct::reduce_scatter);
  in_each(builder, across, ring::reduce_scatter);
  in_each(builder, across, ring::all_gather);
  in_each(builder, hosts.inside, direct::all_gather);
}

}  // namespace

Program broadcast(const Shape& shape) {
  Builder builder(shape, {Operation::broadcast, "hierarchical", Rounding::none});
  const Hosts hosts = hosts_of(builder, shape);
  in_each_with_all(builder, {hosts.leaders}, binomial_tree::broadcast);
  in_each_with_all(builder, hosts.inside, direct::broadcast);
  return builder.finish();
}

Program reduce(const Shape& shape) {
  Builder builder(shape, {Operation::reduce, "hierarchical", Rounding::per_hop});
  const Hosts hosts = hosts_of(builder, shape);
  in_each_with_all(builder, hosts.inside, direct::reduce);
  in_each_with_all(builder, {hosts.leaders}, binomial_tree::reduce);
  return builder.finish();
}

Program all_reduce(const Shape& shape) {
  Builder builder(shape, {Operation::all_reduce, "hierarchical", Rounding::per_hop, shape.ranks});
  const Hosts hosts = hosts_of(builder, shape);
  if (equal_sizes(hosts)) {
    all_reduce_in_parts(builder, hosts);
    return builder.finish();
  }
  Group leaders = hosts.leaders;
  for (int host = 0; host < leaders.size(); ++host) {
    const mesh::Range part = mesh::split(builder.all().count, {host, leaders.size()});
    leaders.blocks[static_cast<size_t>(host)] = {{static_cast<int>(part.offset), static_cast<int>(part.size)}};
  }
  in_each_with_all(builder, hosts.inside, direct::reduce);
  ring::reduce_scatter(builder, leaders);
  ring::all_gather(builder, leaders);
  in_each_with_all(builder, hosts.inside, direct::broadcast);
  return builder.finish();
}

Program reduce_scatter(const Shape& shape) {
  Builder builder(shape, {Operation::reduce_scatter, "hierarchical", Rounding::per_hop});
  const Hosts hosts = hosts_of(builder, shape);
  in_each_with_all(builder, hosts.inside, direct::reduce);
  ring::reduce_scatter(builder, hosts.leaders);
  in_each(builder, hosts.inside, direct::scatter);
  return builder.finish();
}

Program all_gather(const Shape& shape) {
  Builder builder(shape, {Operation::all_gather, "hierarchical", Rounding::none});
  const Hosts hosts = hosts_of(builder, shape);
  in_each(builder, hosts.inside, direct::gather);
  ring::all_gather(builder, hosts.leaders);
  in_each_with_all(builder, hosts.inside, direct::broadcast);
  return builder.finish();
}

Program scatter(const Shape& shape) {
  Builder builder(shape, {Operation::scatter, "hierarchical", Rounding::none});
  const Hosts hosts = hosts_of(builder, shape);
  direct::scatter(builder, hosts.leaders);
  in_each(builder, hosts.inside, direct::scatter);
  return builder.finish();
}

Program gather(const Shape& shape) {
  Builder builder(shape, {Operation::gather, "hierarchical", Rounding::none});
  const Hosts hosts = hosts_of(builder, shape);
  in_each(builder, hosts.inside, direct::gather);
  direct::gather(builder, hosts.leaders);
  return builder.finish();
}

// Inside a host directly; to other hosts through the leaders, who exchange pairwise.
Program all_to_all(const Shape& shape) {
  Builder builder(shape, {Operation::all_to_all, "hierarchical", Rounding::none});
  const std::vector<Group> hosts = hosts_of(builder, shape).inside;
  const int count = static_cast<int>(hosts.size());
  const auto host = [&](int index) -> const Group& { return hosts[static_cast<size_t>(index % count)]; };
  for (int home = 0; home < count; ++home) {
    for (const int from : host(home).ranks) {
      for (const int to : host(home).ranks) {
        if (from != to) builder.move(from, to, pairs(builder, from, {to}));
      }
      for (int distance = 1; from != host(home).rank(0) && distance < count; ++distance) {
        builder.move(from, host(home).rank(0), pairs(builder, from, host(home + distance).ranks));
      }
    }
  }
  builder.next_round();
  for (int distance = 1; distance < count; ++distance) {
    for (int home = 0; home < count; ++home) {
      const Group& away = host(home + distance);
      for (const int from : host(home).ranks) {
        builder.move(host(home).rank(0), away.rank(0), pairs(builder, from, away.ranks));
      }
    }
    builder.next_round();
  }
  for (int home = 0; home < count; ++home) {
    for (int i = 1; i < host(home).size(); ++i) {
      for (int distance = 1; distance < count; ++distance) {
        const int to = host(home).rank(i);
        for (const int from : host(home + distance).ranks) {
          builder.move(host(home).rank(0), to, pairs(builder, from, {to}));
        }
      }
    }
  }
  builder.next_round();
  return builder.finish();
}

}  // namespace lockstep::collective::hierarchical
