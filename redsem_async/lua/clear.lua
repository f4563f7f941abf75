-- clear: delete the semaphore. Holders lose their permits, and waiters start again.
--
-- KEYS     as in the prelude
-- ARGV     none of its own
-- RETURNS  {tag}

for _, owner in ipairs(redis.call('ZRANGE', hubs, 0, -1)) do
  if owner ~= hub then tell(owner, 'cleared', '-') end
end
redis.call('UNLINK', unpack(KEYS))
if last >= now_us then
  -- A burst of tokens has run ahead of the clock: none of them may be drawn again.
  redis.call('HSET', meta, 'counter', exact(last))
  redis.call('PEXPIRE', meta, math.ceil(math.max(0, last / 1000 - now) + SLACK))
end
return { tag }
