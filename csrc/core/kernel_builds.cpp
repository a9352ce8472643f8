#include "core/kernel_builds.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>

namespace mdcg {

namespace {

using Maker = std::function<void(const std::string&)>;

// False while another process makes it and `wait` is not set.
bool build(const KernelCache& cache, const std::string& key, const Maker& make,
           const std::string& advice, bool wait, KernelBuild& out) {
    try {
        out.folder = cache.find(key);
        if (!out.folder.empty()) return true;
        if (jit_disabled())
            throw KernelError(
                "kernel " + key + " (" + cache.target() +
                ") is not in the cache and MDCG_DISABLE_JIT=1 forbids compiling it: " + advice);
        const auto lock = cache.lock(key, wait);
        if (lock == nullptr) return false;
        out.folder = cache.find(key);
        if (!out.folder.empty()) return true;
        const auto start = std::chrono::steady_clock::now();
        out.folder = cache.make(*lock, key, make);
        const auto end = std::chrono::steady_clock::now();
        out.seconds = std::chrono::duration<double>(end - start).count();
        out.compiled = true;
    } catch (const std::exception& error) {
        out.error = error.what();
    }
    return true;
}

}  // namespace

std::vector<KernelBuild> build_all(const KernelCache& cache, const std::vector<std::string>& keys,
                                   std::vector<std::size_t> order, int threads,
                                   const std::function<void(std::size_t, const std::string&)>& make,
                                   const std::string& advice) {
    std::vector<KernelBuild> out(keys.size());
    const auto limit = static_cast<std::size_t>(std::max(threads, 1));
    // First what nobody else is at, then wait for the others: no thread holds one lock and waits
    // for another.
    for (const bool wait : {false, true}) {
        std::atomic<std::size_t> next{0};
        std::vector<char> done(order.size(), 0);
        const auto work = [&] {
            for (std::size_t k; (k = next++) < order.size();) {
                const std::size_t i = order[k];
                const auto make_one = [&](const std::string& folder) { make(i, folder); };
                done[k] = build(cache, keys[i], make_one, advice, wait, out[i]);
            }
        };
        std::vector<std::thread> helpers;
        for (std::size_t t = 1; t < std::min(limit, order.size()); ++t) try {
                helpers.emplace_back(work);
            } catch (const std::system_error&) {
                break;  // fewer, then
            }
        work();
        for (std::thread& helper : helpers) helper.join();
        std::vector<std::size_t> rest;
        for (std::size_t k = 0; k < order.size(); ++k)
            if (!done[k]) rest.push_back(order[k]);
        order.swap(rest);
    }
    return out;
}

}  // namespace mdcg
