#include "model/special_tokens.h"

#include <algorithm>

#include "model/bpe_merge.h"

namespace warpline {

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary) : nodes_(1), root_children_(256, -1) {
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.IsSpecial(id)) {
      tokens_.push_back(
          {.id = id, .byte_count = static_cast<uint32_t>(vocabulary.texts[id].size())});
    }
  }
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const Token& a, const Token& b) { return a.byte_count > b.byte_count; });
  for (size_t i = 0; i < tokens_.size(); ++i)
    Insert(vocabulary.texts[tokens_[i].id], static_cast<int32_t>(i));
  LinkSuffixes();
}

int32_t SpecialTokens::Child(int32_t node, uint8_t byte) const {
  if (node == 0) return root_children_[byte];
  int32_t child = nodes_[node].first_child;
  while (child >= 0 && nodes_[child].byte != byte) child = nodes_[child].next_sibling;
  return child;
}

void SpecialTokens::Insert(absl::string_view text, int32_t token) {
  int32_t node = 0;
  for (const char letter : text) {
    const uint8_t byte = static_cast<uint8_t>(letter);
    int32_t child = Child(node, byte);
    if (child < 0) {
      child = static_cast<int32_t>(nodes_.size());
      nodes_.push_back({.next_sibling = nodes_[node].first_child, .byte = byte});
      nodes_[node].first_child = child;
      if (node == 0) root_children_[byte] = child;
    }
    node = child;
  }
  nodes_[node].longest = token;
}

void SpecialTokens::LinkSuffixes() {
  std::vector<int32_t> breadth_first = {0};
  for (size_t i = 0; i < breadth_first.size(); ++i) {
    const int32_t node = breadth_first[i];
    for (int32_t child = nodes_[node].first_child; child >= 0; child = nodes_[child].next_sibling) {
      breadth_first.push_back(child);
      if (node == 0) continue;  // a suffix of one byte is the root
      int32_t suffix = nodes_[node].suffix;
      while (suffix != 0 && Child(suffix, nodes_[child].byte) < 0) suffix = nodes_[suffix].suffix;
      nodes_[child].suffix = std::max(Child(suffix, nodes_[child].byte), 0);
    }
    const int32_t inherited = nodes_[nodes_[node].suffix].longest;
    if (nodes_[node].longest >= 0) {
      tokens_[nodes_[node].longest].shorter = inherited;
    } else {
      nodes_[node].longest = inherited;
    }
  }
}

std::vector<SpecialMatch> SpecialTokens::Find(
    absl::string_view text,
    absl::FunctionRef<bool(int32_t id, size_t begin, size_t end)> allowed) const {
  std::vector<SpecialMatch> matches;
  if (tokens_.empty()) return matches;
  // Each end of an occurrence waits under its longest allowed token; a token that overlaps a longer
  // one's place gives way to the next shorter that ends there.
  RankQueue candidates;
  const auto offer = [&](int32_t token, size_t end) {
    while (token >= 0 && !allowed(tokens_[token].id, end - tokens_[token].byte_count, end)) {
      token = tokens_[token].shorter;
    }
    if (token >= 0) candidates.Push(token, static_cast<int32_t>(end));
  };
  int32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    int32_t child = Child(node, byte);
    while (child < 0 && node != 0) {
      node = nodes_[node].suffix;
      child = Child(node, byte);
    }
    node = std::max(child, 0);
    if (nodes_[node].longest >= 0) offer(nodes_[node].longest, i + 1);
  }
  int32_t token = 0;
  int32_t end = 0;
  std::vector<bool> taken;
  while (candidates.Pop(&token, &end)) {
    taken.resize(text.size());
    const size_t begin = end - tokens_[token].byte_count;
    // All places taken so far are at least as long as this token, so one that overlaps it covers
    // one of its ends.
    if (taken[end - 1]) continue;
    if (taken[begin]) {
      offer(tokens_[token].shorter, end);
      continue;
    }
    std::fill(taken.begin() + begin, taken.begin() + end, true);
    matches.push_back({.begin = begin, .end = static_cast<size_t>(end), .id = tokens_[token].id});
  }
  std::sort(matches.begin(), matches.end(),
            [](const SpecialMatch& a, const SpecialMatch& b) { return a.begin < b.begin; });
  return matches;
}

}  // namespace warpline
