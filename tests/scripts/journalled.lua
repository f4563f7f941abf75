-- journalled: what a script is wrapped in when it has to write down what it did.
--
-- In front of the script; the lines after it are at the end of this file. The record is a RESP
-- array, since clients have fast readers of that, and it keeps every digit:
--
--   mode, operation, seconds and microseconds of the server's clock, which of the declared keys
--   existed ('1' or '0' each), the first key, the arguments, the call that they are for (which the
--   client gives as one more argument), the writes (each: how many heard it, command,
--   arguments...), and the reply, as RESP within a text
--
-- WRITES below has every command by which a script changes something or tells somebody.

local real = redis
local WRITES = {
  ZADD = true, ZREM = true, HSET = true, HDEL = true, SET = true, DEL = true, UNLINK = true,
  PEXPIRE = true, PUBLISH = true, SPUBLISH = true,
}
local writes, time = {}, nil

local function noting(run)
  return function(...)
    local reply = run(...)
    local command = ...
    if command == 'TIME' then
      time = reply
    elseif WRITES[command] then
      writes[#writes + 1] = { type(reply) == 'number' and reply or -1, ... }
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

local asked, present = table.remove(ARGV), {}
for i, key in ipairs(KEYS) do present[i] = real.call('EXISTS', key) end

local function run(redis)
--[[ the script stands here ]]
end

local noted = { call = noting(real.call), pcall = noting(real.pcall) }
local ran, reply = pcall(run, setmetatable(noted, { __index = real }))
local said = ran and reply or { err = type(reply) == 'table' and reply.err or tostring(reply) }
time = time or real.call('TIME')
real.call('RPUSH', string.match(KEYS[1], PLACE) .. '@journal', table.concat(encode({
  MODE, OPERATION, time[1], time[2], table.concat(present), KEYS[1], ARGV, asked, writes,
  table.concat(encode(said, {})),
}, {})))
if not ran then error(reply, 0) end
return reply
