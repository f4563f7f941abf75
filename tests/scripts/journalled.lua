-- journalled: what a script is wrapped in when it has to write down what it found and what it left.
--
-- In front of the script; the lines after it are at the end of this file. The record is a RESP
-- array, since clients have fast readers of that, and it keeps every digit:
--
--   mode, operation, seconds and microseconds of the server's clock, what the names of the keys
--   begin with, the arguments, the call that they are for (which the client gives as one more
--   argument), the keys before and after it (each: kind, type, milliseconds left, members and
--   values), the messages (each: how many heard it, channel, message), and the reply

local real, asked, messages, time = redis, table.remove(ARGV), {}, nil
local base = string.match(KEYS[1], '^(.*:)')

local function keys_of_it()
  local found = {}
  for _, kind in ipairs(KINDS) do
    local key, has = base .. kind, nil
    local sort = real.call('TYPE', key).ok
    if sort == 'zset' then has = real.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
    if sort == 'hash' then has = real.call('HGETALL', key) end
    if sort == 'string' then has = { '', real.call('GET', key) } end
    if has then found[#found + 1] = { kind, sort, real.call('PTTL', key), has } end
  end
  return found
end

local function noting(run)
  return function(...)
    local reply, command = run(...), ...
    if command == 'TIME' then time = reply end
    if command == 'PUBLISH' or command == 'SPUBLISH' then
      messages[#messages + 1] = { type(reply) == 'number' and reply or -1, select(2, ...) }
    end
    return reply
  end
end

local function encode(value, parts)
  local kind = type(value)
  if kind == 'table' and value.err then
    parts[#parts + 1] = '-' .. string.gsub(value.err, '[\r\n]', ' ') .. '\r\n'
  elseif kind == 'table' then
    parts[#parts + 1] = '*' .. #value .. '\r\n'
    for i = 1, #value do encode(value[i], parts) end
  elseif kind == 'number' then
    parts[#parts + 1] = string.format(':%.0f\r\n', value)
  elseif kind == 'string' then
    parts[#parts + 1] = '$' .. #value .. '\r\n' .. value .. '\r\n'
  else
    parts[#parts + 1] = '$-1\r\n'
  end
  return parts
end

local function run(redis)
--[[ the script stands here ]]
end

local before, noted = keys_of_it(), { call = noting(real.call), pcall = noting(real.pcall) }
local ran, reply = pcall(run, setmetatable(noted, { __index = real }))
local said = ran and reply or { err = type(reply) == 'table' and reply.err or tostring(reply) }
time = time or real.call('TIME')
real.call('RPUSH', string.match(KEYS[1], PLACE) .. '@journal', table.concat(encode({
  MODE, OPERATION, time[1], time[2], base, ARGV, asked, before, keys_of_it(), messages,
  table.concat(encode(said, {})),
}, {})))
if not ran then error(reply, 0) end
return reply
