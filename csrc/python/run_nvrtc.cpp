#include "run_nvrtc.hpp"

#include <stdexcept>

namespace mdcg {

namespace {

using Program = void*;

constexpr int kCompilationError = 6;  // NVRTC_ERROR_COMPILATION

// Destroys a program whichever way its compilation ends.
class ProgramGuard {
public:
    ProgramGuard(Program program, int (*destroy)(Program*))
        : program_(program), destroy_(destroy) {}
    ~ProgramGuard() { destroy_(&program_); }
    ProgramGuard(const ProgramGuard&) = delete;
    ProgramGuard& operator=(const ProgramGuard&) = delete;

private:
    Program program_;
    int (*destroy_)(Program*);
};

template <typename Function>
Function symbol(const SharedLibrary& library, const char* name) {
    return reinterpret_cast<Function>(library.symbol(name));
}

}  // namespace

Nvrtc::Nvrtc(const std::string& path) : library_(SharedLibrary::lasting(path)) {
    check(symbol<int (*)(int*, int*)>(library_, "nvrtcVersion")(&major_, &minor_), "nvrtcVersion");
    int count = 0;
    check(symbol<int (*)(int*)>(library_, "nvrtcGetNumSupportedArchs")(&count),
          "nvrtcGetNumSupportedArchs");
    architectures_.resize(static_cast<std::size_t>(count));
    check(symbol<int (*)(int*)>(library_, "nvrtcGetSupportedArchs")(architectures_.data()),
          "nvrtcGetSupportedArchs");
}

void Nvrtc::check(int status, const char* what) const {
    if (status == 0) return;
    const auto text = symbol<const char* (*)(int)>(library_, "nvrtcGetErrorString");
    throw std::runtime_error(std::string(what) + " failed: " + text(status));
}

NvrtcResult Nvrtc::compile(const std::string& source, const std::string& name,
                           const std::vector<std::string>& options) const {
    Program program = nullptr;
    const auto create = symbol<int (*)(Program*, const char*, const char*, int, const char* const*,
                                       const char* const*)>(library_, "nvrtcCreateProgram");
    check(create(&program, source.c_str(), name.c_str(), 0, nullptr, nullptr),
          "nvrtcCreateProgram");
    const ProgramGuard guard(program, symbol<int (*)(Program*)>(library_, "nvrtcDestroyProgram"));
    std::vector<const char*> arguments;
    for (const std::string& option : options) arguments.push_back(option.c_str());
    const auto run =
        symbol<int (*)(Program, int, const char* const*)>(library_, "nvrtcCompileProgram");
    const int status = run(program, static_cast<int>(arguments.size()), arguments.data());

    const auto text = [&](const char* size_name, const char* get_name) {
        std::size_t size = 0;
        check(symbol<int (*)(Program, std::size_t*)>(library_, size_name)(program, &size),
              size_name);
        std::string value(size, '\0');
        check(symbol<int (*)(Program, char*)>(library_, get_name)(program, value.data()), get_name);
        return value;
    };
    NvrtcResult result{status == 0, {}, text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog")};
    if (!result.log.empty() && result.log.back() == '\0') result.log.pop_back();
    if (status != 0 && status != kCompilationError && result.log.empty())
        check(status, "nvrtcCompileProgram");
    if (result.ok) result.cubin = text("nvrtcGetCUBINSize", "nvrtcGetCUBIN");
    return result;
}

}  // namespace mdcg
