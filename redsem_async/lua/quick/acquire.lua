-- The quick path of an acquire, which most can take: everything fits, and there is nothing to
-- purge, to serve, to weigh or to note beside it. It does what the rest of the script would do,
-- with fewer commands: that the caller's hub counts as alive vouches for the expiry of meta.
--
-- RETURNS  {tag, token, room}: all are granted, with tokens in a row from that one on; room is
--          how many permits are left

local function grant_all()
  local lease, hub_info = tonumber(ARGV[5]), ARGV[9]
  local count = #ARGV - 10
  if unknown_hub or unreachable or not fields[1] or hub_info ~= ''
      or alive_until < now + liveness_timeout(lease)
      or grace > now or call('EXISTS', extra, limit, line) > 0 then
    return
  end
  local used, effective_limit = call('ZCARD', holders), tonumber(ARGV[6])
  if marker and used == 0 and call('HLEN', tokens) > 0 then return end
  if used + count > effective_limit or used > 0 and call('ZCOUNT', holders, '-inf', now) > 0 then
    return
  end

  local token, highest = math.max(last + 1, stamp_us), mark
  local expiry = string.format('%.0f', now + lease)
  local scores, names = {}, {}
  for i = 1, count do
    local number = tonumber(ARGV[10 + i])
    if not number or number <= highest then return end  -- heavy, or used before
    highest = number
    local id = hub .. '.' .. ARGV[10 + i]
    scores[2 * i - 1], scores[2 * i] = expiry, id
    names[2 * i - 1], names[2 * i] = id, token + i - 1
  end
  -- The first write is one that is refused at maxmemory, and of the only key not read before:
  -- an acquire fails with nothing written.
  call('HSET', tokens, unpack(names))
  call('HSET', meta, 'counter', token + count - 1, hub, highest)
  call('ZADD', holders, unpack(scores))
  if used == 0 then
    call('PEXPIRE', holders, 3 * lease)
    call('PEXPIRE', tokens, 3 * lease)
  else
    keep(holders, lease)
    keep(tokens, lease)
  end
  -- A counter ahead of the clock is kept for longer; a local clock is not the one of expiries.
  if token > wall_us or clock_us ~= '' then
    keep(meta, lease + (token - wall_us) / 1000 + SLACK)
  end
  return { tag, token, effective_limit - used - count }
end

local alone  -- whether nothing of the caller's is before these requests, or beside them
if string.find(mode, 'fair', 1, true) then
  alone = tonumber(ARGV[8]) <= mark
else
  alone = ARGV[7] == '0' and ARGV[8] == '0'
end
local reply = alone and grant_all()
if reply then return reply end
