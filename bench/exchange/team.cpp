#include "team.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::bench {

struct Team::Order {
  enum class Kind : std::int32_t { kConnect, kCheck, kRun, kLeave };
  Kind kind = Kind::kLeave;
  std::uint32_t exchanger = 0;
  std::int64_t floats = 0;
  std::uint64_t times = 0;
};

struct Team::Process {
  pid_t id = -1;
  int orders = -1, answers = -1;
};

// What each process has.
class Team::Member {
 public:
  Member(int rank, int size, std::int64_t most_floats, std::string folder, std::vector<MakeExchanger> makers)
      : rank_(rank),
        size_(size),
        folder_(std::move(folder)),
        makers_(std::move(makers)),
        data_(static_cast<std::size_t>(most_floats)) {}

  // The answer to an order.
  bool follow(const Order& order) {
    switch (order.kind) {
      case Order::Kind::kConnect: {
        for (const MakeExchanger& make : makers_) exchangers_.push_back(make(rank_, size_, folder_));
        return true;
      }
      case Order::Kind::kCheck: return check(order);
      case Order::Kind::kRun: {
        for (std::uint64_t i = 0; i < order.times; ++i)
          exchangers_[order.exchanger]->all_reduce(data_.data(), order.floats);
        return true;
      }
      case Order::Kind::kLeave: break;
    }
    return true;
  }

 private:
  bool check(const Order& order) {
    std::fill_n(data_.begin(), order.floats, static_cast<float>(rank_ + 1));
    exchangers_[order.exchanger]->all_reduce(data_.data(), order.floats);
    const auto right = static_cast<float>(size_ * (size_ + 1) / 2);
    const bool is_right =
        std::all_of(data_.begin(), data_.begin() + order.floats, [right](float x) { return x == right; });
    std::fill_n(data_.begin(), order.floats, 0.0F);  // sums of sums would end as infinities
    return is_right;
  }

  const int rank_, size_;
  const std::string folder_;
  const std::vector<MakeExchanger> makers_;
  std::vector<float> data_;
  std::vector<std::unique_ptr<Exchanger>> exchangers_;
};

Team::Team(int size, std::int64_t most_floats, std::vector<MakeExchanger> makers) : size_(size) {
  std::array<char, 32> pattern{"/tmp/bench_exchange_XXXXXX"};
  if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("bench_exchange: no temporary folder");
  folder_ = pattern.data();
  for (int rank = 1; rank < size; ++rank) {
    std::array<int, 2> orders{}, answers{};
    if (pipe(orders.data()) != 0 || pipe(answers.data()) != 0)
      throw std::runtime_error("bench_exchange: no pipes");
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("bench_exchange: no process");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(orders[1]);
      close(answers[0]);
      try {
        Member member(rank, size, most_floats, folder_, std::move(makers));
        Order order;
        while (read(orders[0], &order, sizeof order) == sizeof order && order.kind != Order::Kind::kLeave) {
          const char is_right = member.follow(order) ? 1 : 0;
          if (order.kind != Order::Kind::kRun && write(answers[1], &is_right, 1) != 1) break;
        }
      } catch (const std::exception& error) {
        std::fprintf(stderr, "bench_exchange: process %d of %d: %s\n", rank, size, error.what());
        _exit(1);
      }
      _exit(0);
    }
    close(orders[0]);
    close(answers[1]);
    others_.push_back({child, orders[1], answers[0]});
  }
  self_ = std::make_unique<Member>(0, size, most_floats, folder_, std::move(makers));
}

Team::~Team() {
  tell({});
  self_.reset();
  for (const Process& other : others_) {
    waitpid(other.id, nullptr, 0);
    close(other.orders);
    close(other.answers);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void Team::tell(const Order& order) const {
  for (const Process& other : others_) {
    if (write(other.orders, &order, sizeof order) != sizeof order)
      std::fprintf(stderr, "bench_exchange: a process is gone\n");
  }
}

bool Team::all_answer() const {
  bool all_right = true;
  for (const Process& other : others_) {
    char is_right = 0;
    all_right = read(other.answers, &is_right, 1) == 1 && is_right == 1 && all_right;
  }
  return all_right;
}

void Team::connect() {
  const Order order{.kind = Order::Kind::kConnect};
  tell(order);
  self_->follow(order);
  if (!all_answer()) throw std::runtime_error("bench_exchange: the processes did not meet");
}

bool Team::check(std::size_t exchanger, std::int64_t floats) {
  const Order order{
      .kind = Order::Kind::kCheck, .exchanger = static_cast<std::uint32_t>(exchanger), .floats = floats};
  tell(order);
  const bool is_right = self_->follow(order);
  return all_answer() && is_right;
}

void Team::run(std::size_t exchanger, std::int64_t floats, std::size_t times) {
  const Order order{.kind = Order::Kind::kRun,
                    .exchanger = static_cast<std::uint32_t>(exchanger),
                    .floats = floats,
                    .times = times};
  tell(order);
  self_->follow(order);
}

}  // namespace lockstep::bench
