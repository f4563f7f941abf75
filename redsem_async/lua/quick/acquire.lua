-- quick acquire: grant all requests of the call, or queue all of them, with the fewest commands.
--
-- The result is that of acquire. The quick path is taken when all of this is true:
--
--   1. usual_mark and usual_state() find nothing unusual, and there are requests
--   2. every number is higher than the one before it, and no request is heavy
--
-- and one of these:
--
--   3. no request waits, or with keys none of these keys, and all of these fit
--   4. without keys, they have to wait, and the queue has no bound; if others wait, somebody holds a
--      permit, and (fair) the first request may be served one day, though not now
--
-- RETURNS  {tag, token}: all are granted, and token is the first of their consecutive tokens; or as
--          acquire does

-- What the keys of the requests have in use with them, and the virtual times; *found* is one table a
-- request, of number, limit and weight of the key, and key. nil where one of them has to wait.
local function uses_with(found, waiting)
  local in_use, times, virtual = {}, {}, nil
  for _, request in ipairs(found) do
    local _, declared, weight, key = unpack(request)
    if waiting > 0 and call('ZLEXCOUNT', lines, '[' .. key .. '!', '(' .. key .. '"') > 0 then
      return
    end
    in_use[key] = (in_use[key] or tonumber(call('ZSCORE', uses, key)) or 0) + 1
    if key ~= '' and in_use[key] > (tonumber(declared) or math.huge) then return end
    if key ~= '' and turns then  -- with share, its virtual time moves on
      local stored = times[key] and {} or call('HMGET', meta, 'virtual', 'virtual:' .. key)
      virtual = math.max(virtual or tonumber(stored[1]) or 0, times[key] or tonumber(stored[2]) or 0)
      times[key] = tonumber(string.format('%.6f', virtual + 1 / weight))
    end
  end
  local counts, moved = {}, virtual and { 'virtual', string.format('%.6f', virtual) } or {}
  for key, permits in pairs(in_use) do
    counts[#counts + 1], counts[#counts + 2] = permits, key
  end
  for key, time in pairs(times) do
    moved[#moved + 1], moved[#moved + 2] = 'virtual:' .. key, string.format('%.6f', time)
  end
  return counts, moved
end

-- What meta has of the rates with all that is *found*, number and costs of each; nil where a rate holds
-- one up, or a debt outlasts the lease.
local function rates_with(found, lease)
  rated.load_state()
  for _, request in ipairs(found) do
    if rated.lets_at(request[2]) then return end
    rated.spend(request[2], 1)
  end
  local text, last = rated.left()
  return last <= now_us + 1000 * lease and { 'rates', text } or nil
end

local function grant_or_queue_all()
  local mark, is_fair = usual_mark, string.find(mode, 'fair', 1, true)
  if not mark or #ARGV == 10 or is_fair and passed and not uses then return end
  local found = {}
  for i = 11, #ARGV do
    local number = tonumber(ARGV[i])
    if rated then
      found[i - 10] = { string.match(ARGV[i], '^(%d+):1:[01]::([%d/+]+)$') }
    elseif uses then
      found[i - 10] = number and { ARGV[i], '', '1', '' }
        or { string.match(ARGV[i], '^(%d+):1:[012]:%d*:(%d*):([%d.]+):%d+:([^:]*)$') }
    end
    if found[i - 10] then number = tonumber(found[i - 10][1]) end
    if not number or number <= mark then return end
    mark = number
  end
  local used, waiting, next_expiry = usual_state()
  if not used then return end
  local lease, declared, count = tonumber(ARGV[5]), tonumber(ARGV[6]), #ARGV - 10
  local token = token_after(counter)
  local entries, scores = {}, {}
  if used + count <= declared and (uses or waiting == 0) then
    local counts, moved = nil, {}
    if uses then counts, moved = uses_with(found, waiting) end
    if rated then moved = rates_with(found, lease) end
    if not moved or waiting > 0 and now + lease < next_expiry then return end
    local expiry = string.format('%.0f', now + lease)
    for i = 1, count do
      local id = hub .. '.' .. (found[i] and found[i][1] or ARGV[10 + i])
      scores[2 * i - 1], scores[2 * i] = expiry, id
      entries[2 * i - 1] = id
      entries[2 * i] = string.format('%.0f:1::', token + i - 1) .. (uses and found[i][4] or '')
    end
    -- The first write can fail: Redis refuses it at maxmemory. The acquire then fails with nothing
    -- written.
    save(token + count - 1, mark, lease, unpack(moved))
    call('HSET', facts, unpack(entries))
    if uses then
      call('ZADD', uses, unpack(counts))
      keep(uses, lease)
    end
    call('ZADD', holders, unpack(scores))
    keep_holders(lease, used)
    if waiting == 0 then return { tag, token } end
    local reply = { tag, math.min(next_expiry, now + lease) - now, waiting, {}, -1, -1, {} }
    for i = 1, count do reply[i + 7] = token + i - 1 end
    return reply
  end
  local head = waiting > 0 and call('ZRANGE', queue, 0, 0)[1]
  if uses or rated or used < declared and not (head and is_fair) or ARGV[7] ~= '-1' then return end
  if head then
    local its_limit, permits = string.match(head, '^[^:]*:%d+:(%d+):(%d+)$')
    local most = tonumber(its_limit) - permits
    if used == 0 or is_fair and (most < 0 or used <= most) then return end
  end
  for i = 11, #ARGV do
    entries[2 * i - 21] = string.format('%.0f', token + i - 11)
    entries[2 * i - 20] = hub .. '.' .. ARGV[i] .. ':' .. ARGV[5] .. ':' .. ARGV[6] .. ':1'
  end
  local need = liveness_timeout(lease)
  call('ZADD', queue, unpack(entries))
  keep(queue, need)
  -- What `passed` says after the requests have joined the queue (zset): see order.lua.
  local ticket, needed = string.match(passed or '', '^(%w+):(%d+):%-$')
  if waiting == 0 then ticket, needed = 'inf', 0 end
  if ticket and not is_fair then
    local text = string.format('%s:%.0f:-', ticket, math.max(tonumber(needed), declared))
    save(token + count - 1, mark, need, 'passed', text)
  else
    save(token + count - 1, mark, need)
  end
  if head and is_fair then
    next_expiry = math.min(next_expiry, alive_until(string.match(head, '^%x+')))
  end
  local next_ms = next_expiry < math.huge and math.max(0, next_expiry - now) or -1
  local reply = { tag, next_ms, waiting + count, {}, -1, usual_hold }
  for i = 1, count do reply[6 + i] = 0 end
  return reply
end

local reply = grant_or_queue_all()
if reply then return reply end
