#include "engine/cuda/peer_windows.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
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
    if (problem.kind != PeerWindows::NONE)
        throw EngineError(static_cast<ErrorKind>(problem.kind),
                          of_rank(rank) + ": " + problem.text);
}

// Calls `step`. Collective: if it fails in a process, all throw the problem of the lowest rank.
template <typename Step>
void together(Communicator& communicator, const Step& step) {
    PeerWindows::Problem problem;
    try {
        step();
    } catch (...) {
        problem = PeerWindows::problem_of(std::current_exception());
    }
    std::vector<PeerWindows::Problem> all(size(communicator.peers().num_ranks));
    communicator.gather(&problem, all.data(), sizeof problem);
    for (std::size_t rank = 0; rank < all.size(); ++rank) check(rank, all[rank]);
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
    const std::size_t wanted = std::max(bytes + bytes / 8, FEWEST_BYTES);  // later lists need more
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
            throw EngineError(ErrorKind::device,
                              of_rank(rank) + " is on another machine than " + of_rank(0));
    together(communicator, [&] { look_into(peers, all); });
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
    windows_.clear();  // closes the others
    for (Window& window : found)
        if (!window.memory) window.memory = std::make_unique<PeerMemory>(device_, window.handle);
    windows_ = std::move(found);
}

void PeerWindows::test(Communicator& communicator) {
    open(communicator, sizeof(int), {});
    const Peers peers = communicator.peers();
    std::optional<DeviceStream> stream;
    together(communicator, [&] {
        stream.emplace(device_);
        copy_to_device(mine(), &peers.rank, sizeof peers.rank, *stream);
        stream->synchronize();
    });
    turn_ = 1 - turn_;
    together(communicator, [&] {
        DeviceMemory received(device_);
        received.reserve(sizeof(int));
        for (std::int64_t i = 0; i < peers.count; ++i) {
            const int other = peers.peer[i].rank;
            int found = -1;
            copy_on_device(received.data(), of(size(i)), sizeof found, *stream);
            copy_to_host(&found, received.data(), sizeof found, *stream);
            stream->synchronize();
            if (found != other)
                throw EngineError(ErrorKind::device, "it reads " + std::to_string(found) +
                                                         " from the device of rank " +
                                                         std::to_string(other) +
                                                         ", which has written its rank there");
        }
    });
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
