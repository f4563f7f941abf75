-- quick acquire, with keys: grant all requests of the call, with the fewest commands.
--
-- The result is that of acquire. The quick path is taken when all of this is true:
--
--   1. what quick acquire without keys asks for: its 1 and 2
--   2. no limit of a key is set, and no key backs off
--   3. the requests are for one permit each, and fit under the limit and those of their keys
--   4. if others wait: queue_is_settled(), no key is ready, and no request of these keys waits
--
-- RETURNS  {tag, token}: all are granted, and token is the first of their consecutive tokens; or as
--          acquire does

local function grant_all()
  local lease, shares, mark = tonumber(ARGV[5]), string.find(mode, 'share', 1, true), usual_mark
  if not mark then return end
  local used, waiting, next_expiry = usual_state(1, 2, unpack(KEYS, 7))
  if not used or used + #ARGV - 10 > tonumber(ARGV[6]) then return end
  if used + waiting > 0 and not usual_keys(used, waiting) then return end
  local token = math.max(state.counter + 1, now_us)
  local texts, scores, in_use, times, virtual = {}, {}, {}, {}, nil
  for i = 11, #ARGV do
    local number, declared, weight, key = ARGV[i], '', '1', ''
    if not tonumber(number) then
      number, declared, weight, key =
        string.match(number, '^(%d+):1:[012]:%d*:(%d*):([%d.]+):%d+:([^:]*)$')
    end
    if not number or tonumber(number) <= mark then return end
    mark = tonumber(number)
    if waiting > 0 and call('ZLEXCOUNT', lines, '[' .. key .. '!', '(' .. key .. '"') > 0 then
      return
    end
    in_use[key] = (in_use[key] or tonumber(call('ZSCORE', uses, key)) or 0) + 1
    if key ~= '' and in_use[key] > (tonumber(declared) or math.huge) then return end
    if key ~= '' and shares then  -- its virtual time moves on
      if not times[key] then
        local stored = call('HMGET', meta, 'virtual', 'virtual:' .. key)
        virtual = virtual or tonumber(stored[1]) or 0
        times[key] = tonumber(stored[2]) or 0
      end
      virtual = math.max(virtual, times[key])
      times[key] = tonumber(string.format('%.6f', virtual + 1 / weight))
    end
    local id = hub .. '.' .. number
    texts[#texts + 1], texts[#texts + 2] = id, string.format('%.0f:1::', token + i - 11) .. key
    scores[#scores + 1], scores[#scores + 2] = string.format('%.0f', now + lease), id
  end
  -- The first write can fail: Redis refuses it at maxmemory. The acquire then fails with nothing
  -- written.
  call('HSET', facts, unpack(texts))
  call('ZADD', holders, unpack(scores))
  local counts, moved = {}, virtual and { 'virtual', string.format('%.6f', virtual) } or {}
  for key, permits in pairs(in_use) do
    counts[#counts + 1], counts[#counts + 2] = permits, key
  end
  for key, time in pairs(times) do
    moved[#moved + 1], moved[#moved + 2] = 'virtual:' .. key, string.format('%.6f', time)
  end
  call('ZADD', uses, unpack(counts))
  for _, key in ipairs({ holders, facts, uses }) do keep(key, lease) end
  save(token + #ARGV - 11, mark, lease, unpack(moved))
  if waiting == 0 then return { tag, token } end
  local reply = { tag, math.min(next_expiry, now + lease) - now, waiting, {}, -1, -1, {} }
  for i = 11, #ARGV do reply[i - 3] = token + i - 11 end
  return reply
end

local reply = grant_all()
if reply then return reply end
