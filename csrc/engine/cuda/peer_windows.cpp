#include "engine/cuda/peer_windows.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <stdexcept>
#include <utility>

#include "core/files.hpp"
#include "core/integers.hpp"
#include "engine/error.hpp"

namespace mdcg {

namespace {

// Smallest window. (The driver may put small allocations into one block with other memory; handles
// contain the offset in the block.)
constexpr std::size_t FEWEST_BYTES = 4096;

template <std::size_t N>
void write(char (&to)[N], const std::string& text) {
    std::memset(to, 0, N);
    std::memcpy(to, text.data(), std::min(text.size(), N - 1));
}

// The same for all processes of one machine until it restarts; empty where it is unknown.
std::string this_machine() {
    try {
        return read_file("/proc/sys/kernel/random/boot_id");
    } catch (const std::runtime_error&) {
        return "";
    }
}

[[noreturn]] void refuse(const std::string& problem) {
    throw EngineError(ErrorKind::device,
                      "rows cannot go from device to device (" + problem +
                          "), expected ranks on one machine, each of which sees all their devices: "
                          "let them pass through the host (exchange host)");
}

// Memory that is no longer needed here, but that other processes may still have open. It must not
// be freed before they have closed it, so it is kept for a later window.
class Retired {
public:
    static Retired& all() {
        static auto* const found = new Retired;  // lasts as long as the process
        return *found;
    }
    void keep(int device, DeviceMemory memory) {
        const std::lock_guard<std::mutex> lock(mutex_);
        kept_.emplace_back(device, std::move(memory));
    }
    // Returns memory of at least `bytes` bytes, or empty memory if there is none.
    DeviceMemory take(int device, std::size_t bytes) {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (auto at = kept_.begin(); at != kept_.end(); ++at)
            if (at->first == device && at->second.bytes() >= bytes) {
                DeviceMemory found = std::move(at->second);
                kept_.erase(at);
                return found;
            }
        return DeviceMemory(device);
    }

private:
    std::mutex mutex_;
    std::vector<std::pair<int, DeviceMemory>> kept_;
};

std::string of_rank(std::size_t rank) { return "rank " + std::to_string(rank); }

void check(std::size_t rank, const PeerWindows::Problem& problem) {
    if (problem.kind == PeerWindows::NONE) return;
    const auto kind = static_cast<ErrorKind>(problem.kind);
    const std::string text = of_rank(rank) + ": " + problem.text;
    if (kind == ErrorKind::device) refuse(text);
    throw EngineError(kind, text);
}

}  // namespace

PeerWindows::Problem PeerWindows::problem_of(std::exception_ptr error) {
    Problem found;
    const auto note = [&](ErrorKind kind, const char* text) {
        found.kind = static_cast<int>(kind);
        write(found.text, text);
    };
    try {
        std::rethrow_exception(error);
    } catch (const EngineError& e) {
        note(e.kind(), e.what());
    } catch (const DeviceError& e) {
        note(e.kind() == DeviceError::out_of_memory ? ErrorKind::memory : ErrorKind::device,
             e.what());
    } catch (const std::bad_alloc&) {
        note(ErrorKind::memory, "out of memory: use more ranks");
    }
    return found;
}

PeerWindows::~PeerWindows() {
    windows_.clear();
    retire(former_);
    retire(memory_);
}

void PeerWindows::retire(DeviceMemory& memory) {
    if (memory.bytes() > 0) Retired::all().keep(device_, std::move(memory));
}

void PeerWindows::grow(std::size_t bytes) {
    if (bytes <= half_ && half_ > 0) return;
    const std::size_t wanted = std::max(bytes + (half_ > 0 ? bytes / 8 : 0), FEWEST_BYTES);
    const std::size_t half = (wanted + 255) / 256 * 256;
    DeviceMemory memory = Retired::all().take(device_, 2 * half);
    memory.reserve(2 * half);
    retire(former_);
    former_ = std::exchange(memory_, std::move(memory));
    half_ = half;
}

void PeerWindows::open(Communicator& communicator, std::size_t bytes, const Problem& before) {
    const Peers peers = communicator.peers();
    Greeting mine;
    mine.problem = before;
    if (before.kind == NONE) try {
            grow(bytes);
            mine.handle = share(memory_, device_);
        } catch (...) {
            mine.problem = problem_of(std::current_exception());
        }
    mine.half = half_;
    write(mine.machine, this_machine());
    std::vector<Greeting> all(size(peers.num_ranks));
    communicator.gather(&mine, all.data(), sizeof mine);
    for (std::size_t rank = 0; rank < all.size(); ++rank) check(rank, all[rank].problem);
    for (std::size_t rank = 0; rank < all.size(); ++rank)
        if (std::strcmp(all[rank].machine, all[0].machine) != 0)
            refuse(of_rank(rank) + " is on another machine than " + of_rank(0));
    Problem problem;
    try {
        look_into(peers, all);
    } catch (...) {
        windows_.clear();
        problem = problem_of(std::current_exception());
    }
    std::vector<Problem> problems(all.size());
    communicator.gather(&problem, problems.data(), sizeof problem);
    for (std::size_t rank = 0; rank < all.size(); ++rank) check(rank, problems[rank]);
    former_.release();  // closed by all
    turn_ = 0;
}

void PeerWindows::look_into(const Peers& peers, const std::vector<Greeting>& all) {
    const auto same = [](const SharedMemoryHandle& a, const SharedMemoryHandle& b) {
        return std::memcmp(&a, &b, sizeof a) == 0;
    };
    std::vector<Window> found(size(peers.count));
    for (std::size_t i = 0; i < found.size(); ++i) {
        const Greeting& other = all[size(peers.peer[i].rank)];
        found[i].handle = other.handle;
        found[i].half = other.half;
        for (Window& before : windows_)
            if (before.memory && same(before.handle, other.handle))
                found[i].memory = std::move(before.memory);
    }
    windows_ = std::move(found);  // closes the others
    for (Window& window : windows_)
        if (!window.memory) window.memory = std::make_unique<PeerMemory>(device_, window.handle);
}

void PeerWindows::exchange(Communicator& communicator, const DeviceStream& stream) {
    stream.synchronize();
    communicator.gather(nullptr, nullptr, 0);
    turn_ = 1 - turn_;
}

const char* PeerWindows::of(std::size_t peer) const {
    const Window& window = windows_[peer];
    return window.memory->data() + (1 - turn_) * window.half;
}

}  // namespace mdcg
