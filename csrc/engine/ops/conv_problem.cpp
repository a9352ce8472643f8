#include "engine/ops/conv_problem.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "core/integers.hpp"
#include "engine/ops/op.hpp"
#include "engine/package/limits.hpp"

namespace mdcg {

ConvDescription ConvDescription::read(const Fields& fields, int outputs, int align) {
    const Fields problem = fields.object("problem");
    ConvDescription found;
    found.x = read_rows(problem, "irreps_in1", align);
    found.out = read_rows(problem, "irreps_out", align);
    const Rows harmonics = read_rows(problem, "irreps_in2", 1);
    for (const Block& block : harmonics.blocks) {
        if (block.mul != 1) problem.fail("irreps_in2", problem.text("irreps_in2"), "one of each l");
        found.l_max = std::max(found.l_max, block.l);
    }

    const nlohmann::json& paths = problem.json("paths");
    if (!paths.is_array() || paths.empty() || paths.size() > limits::MAX_PATHS)
        problem.fail("paths", paths.dump().substr(0, 40),
                     "a list of 1 to " + std::to_string(limits::MAX_PATHS) + " paths");
    std::int64_t numel = 0;
    std::int32_t offset = 0;  // at most the outputs, padded for every path
    for (const nlohmann::json& path : paths) {
        const auto index = [&](std::size_t at, const std::vector<Block>& blocks) -> const Block& {
            if (!path.is_array() || path.size() < 5 || !path[at].is_number_integer() ||
                path[at].get<std::int64_t>() < 0 ||
                path[at].get<std::int64_t>() >= static_cast<std::int64_t>(blocks.size()))
                problem.fail("paths", path.dump().substr(0, 60),
                             "[block of x, of harmonics, of out, \"uvu\", 1, path weight]");
            return blocks[path[at].get<std::size_t>()];
        };
        const Block& x = index(0, found.x.blocks);
        const Block& y = index(1, harmonics.blocks);
        const Block& out = index(2, found.out.blocks);
        if (path[3] != "uvu" || path[4] != 1 || x.mul != out.mul)
            problem.fail("paths", path.dump().substr(0, 60),
                         "uvu with weights and equal multiplicities");
        if (x.parity * y.parity != out.parity || out.l < std::abs(x.l - y.l) || out.l > x.l + y.l)
            problem.fail("paths",
                         block_text(x) + " times " + block_text(y) + " to " + block_text(out),
                         "an irrep that their product contains");
        GenericPath p{};
        p.x_offset = x.offset;
        p.x_stride = x.stride;
        p.x_dim = x.dim();
        p.out_offset = out.offset;
        p.out_stride = out.stride;
        p.out_dim = out.dim();
        p.harmonic = y.l * y.l;
        p.harmonic_dim = y.dim();
        p.mul = x.mul;
        p.stride = x.stride;
        numel += x.mul;
        if (numel > outputs) break;
        for (std::int32_t u = 0; u < x.mul; ++u) found.weights.columns.push_back(offset + u);
        offset += x.stride;
        found.paths.push_back(p);
    }
    if (numel != outputs)
        fields.fail("problem",
                    (numel > outputs ? "of more than " : "of ") +
                        std::to_string(std::min<std::int64_t>(numel, outputs)) + " weights",
                    std::to_string(outputs) + ", the outputs of the radial network");
    found.weights.width = offset;

    const Tensor& indices = fields.tensor("nonzeros", {-1, 4}, Content::indices);
    const std::vector<double> values =
        fields.values<double>("values", {indices.shape[0]}, Content::constants);
    std::vector<std::int32_t> rows(4 * values.size());  // tensors need not be aligned
    if (!rows.empty()) std::memcpy(rows.data(), indices.data, rows.size() * sizeof(rows[0]));
    struct Entry {
        std::int32_t path, a, c, b;
        double value;
    };
    std::vector<Entry> entries;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const std::int32_t* r = rows.data() + 4 * i;
        bool fits = r[0] >= 0 && r[0] < narrow(found.paths.size());
        if (fits) {
            const GenericPath& p = found.paths[size(r[0])];
            fits = r[1] >= 0 && r[1] < p.x_dim && r[2] >= 0 && r[2] < p.harmonic_dim && r[3] >= 0 &&
                   r[3] < p.out_dim;
        }
        if (!fits)
            fields.fail("nonzeros", "an index out of range in row " + std::to_string(i),
                        "path and components of the problem");
        entries.push_back({r[0], r[1], r[3], r[2], values[i]});
    }
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& i, const Entry& j) {
        return std::array{i.path, i.a, i.c} < std::array{j.path, j.a, j.c};
    });
    std::size_t at = 0;
    for (std::size_t p = 0; p < found.paths.size(); ++p) {
        GenericPath& path = found.paths[p];
        path.pair_begin = narrow(found.pairs.size());
        for (; at < entries.size() && entries[at].path == narrow(p); ++at) {
            const Entry& e = entries[at];
            const auto end = narrow(found.terms.size());
            if (narrow(found.pairs.size()) == path.pair_begin || found.pairs.back().a != e.a ||
                found.pairs.back().c != e.c)
                found.pairs.push_back({e.a, e.c, end, end});
            found.terms.push_back({e.b, e.value});
            ++found.pairs.back().term_end;
        }
        path.pair_end = narrow(found.pairs.size());
    }
    return found;
}

}  // namespace mdcg
