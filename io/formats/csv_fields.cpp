// io/formats/csv_fields.cpp - the fields of a CSV record, and the numbers in them.
#include "lockstep/io/formats/internal/csv_fields.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <system_error>

#include "lockstep/core/base/printable.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace internal {

std::string csv_line_name(const CsvPlace& place, std::uint64_t lines_more) {
  if (place.reader != nullptr)
    return str(place.reader->path().string(), ":", place.reader->line() + lines_more);
  return str(place.file.empty() ? "line " : place.file, place.file.empty() ? "" : ":",
             place.line + lines_more);
}

void CsvCursor::fail(ErrorCode code, const std::string& what) const {
  const auto lines = static_cast<std::uint64_t>(std::ranges::count(record.substr(0, at), '\n'));
  std::string name;
  if (schema != nullptr && column < schema->columns().size())
    name = str(" ('", printable(schema->columns()[column].name), "')");
  throw_error(code, str(csv_line_name(*place, lines), ": column ", column + 1, name, ": ", what));
}

CsvField take_csv_field(CsvCursor& cursor, char delimiter, std::string& unquoted) {
  const std::string_view record = cursor.record;
  const std::size_t begin = cursor.at;
  if (begin == record.size() || record[begin] != '"') {
    const std::size_t end = std::min(record.find(delimiter, begin), record.size());
    const std::string_view text = record.substr(begin, end - begin);
    if (text.find('"') != std::string_view::npos) {
      cursor.fail(
          ErrorCode::kDataLoss,
          "a quote stands inside of a field that does not begin with one; put the field in quotes, and "
          "write this one twice");
    }
    cursor.at = end;
    return {text, false};
  }
  unquoted.clear();
  bool copied = false;  // else the text lies in the record as it is
  std::size_t from = begin + 1;
  while (true) {
    const std::size_t quote = record.find('"', from);
    if (quote == std::string_view::npos) cursor.fail(ErrorCode::kDataLoss, "its quote does not end");
    if (quote + 1 < record.size() && record[quote + 1] == '"') {
      unquoted.append(record, from, quote + 1 - from);
      copied = true;
      from = quote + 2;
      continue;
    }
    if (quote + 1 < record.size() && record[quote + 1] != delimiter)
      cursor.fail(ErrorCode::kDataLoss,
                  "something follows its closing quote; a quote inside is written twice");
    cursor.at = quote + 1;
    if (!copied) return {record.substr(from, quote - from), true};
    unquoted.append(record, from, quote - from);
    return {unquoted, true};
  }
}

namespace {

template <class T>
const char* take_integer(const char* from, const char* end, void* to) {
  T value{};
  const auto [behind, error] = std::from_chars(from, end, value);
  if (error != std::errc()) return from;
  std::memcpy(to, &value, sizeof value);
  return behind;
}

// std::from_chars says "out of range" of numbers that are too large and of those that are too small.
bool is_tiny(const char* from, const char* end) {
  const char* const exponent = std::find_if(from, end, [](char c) { return c == 'e' || c == 'E'; });
  if (exponent != end) return exponent + 1 != end && exponent[1] == '-';
  return std::find(from, end, '.') - from <= 2;  // 0.000...
}

// A decimal number without an exponent: digits / 10^places.
struct Decimal {
  std::uint64_t digits = 0;
  unsigned places = 0;
  bool negative = false;
  const char* behind = nullptr;  // null: it is none, or has more digits than a double takes exactly
};
Decimal take_decimal(const char* from, const char* end) {
  constexpr unsigned kMostPlaces = 22;  // powers of ten up to there are doubles
  constexpr std::uint64_t kMostDigits = std::uint64_t{1} << 53U;
  Decimal number;
  number.negative = from != end && *from == '-';
  const char* at = number.negative ? from + 1 : from;
  const char* const first = at;
  const char* point = nullptr;
  for (; at != end; ++at) {
    const unsigned digit = static_cast<unsigned char>(*at) - unsigned{'0'};
    if (digit <= 9) {
      number.digits = number.digits * 10 + digit;
      if (at - first > 17) return number;  // 18 digits and the point do not overflow
    } else if (*at == '.' && point == nullptr) {
      point = at;
    } else {
      break;
    }
  }
  const bool has_exponent = at != end && (*at == 'e' || *at == 'E');
  const bool has_digit = at - first > (point == nullptr ? 0 : 1);
  if (has_exponent || !has_digit || number.digits > kMostDigits) return number;
  if (point != nullptr) number.places = static_cast<unsigned>(at - point - 1);
  if (number.places <= kMostPlaces) number.behind = at;
  return number;
}

// Correctly rounded: both operands are exact, and there is one operation.
double value_of(const Decimal& number) {
  static constexpr std::array<double, 23> kPowers = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                                     1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                                     1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
  const double value = static_cast<double>(number.digits) / kPowers[number.places];
  return number.negative ? -value : value;
}

// Of a double that is rounded already: is the float next to it also the one next to the number? A double
// between two floats, exactly in the middle, does not tell on which side of it the number was.
bool rounds_to_float(double value) {
  return (std::bit_cast<std::uint64_t>(value) & 0x1FFFFFFFU) != 0x10000000U;
}

template <class T>
const char* take_floating(const char* from, const char* end, T& value) {
  // Most numbers in tables are short, and quicker read so.
  const Decimal decimal = take_decimal(from, end);
  if (decimal.behind != nullptr) {
    const double number = value_of(decimal);
    value = static_cast<T>(number);
    if (sizeof(T) == sizeof(double) || rounds_to_float(number)) return decimal.behind;
  }
  const auto [behind, error] = std::from_chars(from, end, value);
  if (error == std::errc()) return behind;
  if (error != std::errc::result_out_of_range || !is_tiny(from, behind)) return from;
  value = *from == '-' ? T{-0.0} : T{0};
  return behind;
}

template <class Half>
const char* take_half(const char* from, const char* end, void* to) {
  double value = 0;
  const char* const behind = take_floating(from, end, value);
  if (behind == from) return from;
  const Half half(internal::to_odd_f32(value));
  if (std::isfinite(value) && !std::isfinite(static_cast<float>(half))) return from;
  std::memcpy(to, &half.bits, sizeof half.bits);
  return behind;
}

const char* take_bool(const char* from, const char* end, void* to) {
  struct Word {
    std::string_view text;
    bool value;
  };
  constexpr std::array<Word, 8> kWords = {{{"0", false},
                                           {"1", true},
                                           {"true", true},
                                           {"false", false},
                                           {"True", true},
                                           {"False", false},
                                           {"TRUE", true},
                                           {"FALSE", false}}};
  const std::string_view text(from, static_cast<std::size_t>(end - from));
  for (const Word& word : kWords) {
    if (!text.starts_with(word.text)) continue;
    std::memcpy(to, &word.value, 1);
    return from + word.text.size();
  }
  return from;
}

}  // namespace

const char* take_csv_number(DType dtype, const char* from, const char* end, void* to) {
  switch (dtype) {
    case DType::kF32: {
      float value = 0;
      const char* const behind = take_floating(from, end, value);
      std::memcpy(to, &value, sizeof value);
      return behind;
    }
    case DType::kF64: {
      double value = 0;
      const char* const behind = take_floating(from, end, value);
      std::memcpy(to, &value, sizeof value);
      return behind;
    }
    case DType::kI64: return take_integer<std::int64_t>(from, end, to);
    case DType::kI32: return take_integer<std::int32_t>(from, end, to);
    case DType::kU8: return take_integer<std::uint8_t>(from, end, to);
    case DType::kF16: return take_half<F16>(from, end, to);
    case DType::kBF16: return take_half<BF16>(from, end, to);
    case DType::kBool: break;
  }
  return take_bool(from, end, to);
}

bool read_csv_number(DType dtype, std::string_view field, void* to) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!field.empty() && is_blank(field.front())) field.remove_prefix(1);
  while (!field.empty() && is_blank(field.back())) field.remove_suffix(1);
  if (field.size() > 1 && field[0] == '+' && field[1] != '-') field.remove_prefix(1);
  if (field.empty()) return false;
  const char* const end = field.data() + field.size();
  return take_csv_number(dtype, field.data(), end, to) == end;
}

}  // namespace internal
}  // namespace lockstep
